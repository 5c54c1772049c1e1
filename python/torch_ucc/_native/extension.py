"""The one way to the compiled module: checked against the running torch, with its libraries loaded first."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from torch_ucc._native import loading
from torch_ucc.topology import user


class BuildInfo(Protocol):
    """The part of the generated _build_info that the check reads."""

    TORCH: str


@functools.cache
def compiled() -> Any:
    """torch_ucc._core.

    Raises ImportError, in a sentence: it was built for another torch or not at all, or UCC or UCX is missing.
    """
    check_torch(_build_info(), torch.__version__)
    load_libraries()
    return importlib.import_module("torch_ucc._core")


def load_libraries() -> None:
    """UCX and UCC, those that the extension was built with or others. Raises ImportError."""
    info = _build_info()
    said = {*os.environ, *user.in_files(os.environ)}
    loading.preload(info.UCC_PREFIX, info.UCX_PREFIX, said)


def backend_of(group: Any) -> Any:
    """Ours of a process group; None if it has none."""
    for device in group._device_types:
        backend = group._get_backend(torch.device(device))
        if isinstance(backend, compiled().UccBackend):
            return backend
    return None


def check_torch(info: BuildInfo, running: str) -> None:
    """The extension uses torch's C++ classes, whose layout changes from one minor release to the next."""
    if _release(info.TORCH) != _release(running):
        raise ImportError(
            f"torch_ucc was built for torch {info.TORCH}, but torch {running} is running: rebuild it against "
            f"this one, in its source folder with ci/setup or `pip install --force-reinstall --no-deps .`."
        )


def _release(version: str) -> tuple[str, ...]:
    return tuple(version.split("+")[0].split(".")[:2])


def _build_info() -> ModuleType:
    try:
        return importlib.import_module("torch_ucc._build_info")
    except ModuleNotFoundError as error:
        package = Path(__file__).parents[1]
        raise ImportError(
            f"torch_ucc in {package} was never built: run ci/setup, and import it from outside its sources."
        ) from error
