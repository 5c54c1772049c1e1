"""The one way to the compiled module: that for the running torch, with its libraries loaded first."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from torch_ucc._native import loading
from torch_ucc.topology import user

PACKAGE = Path(__file__).parents[1]
NAME = "torch_ucc._core"


@functools.cache
def compiled() -> Any:
    """torch_ucc._core.

    Raises ImportError, in a sentence: there is none for this torch or none at all, or UCC or UCX is missing.
    """
    path = extension_for(torch.__version__)
    load_libraries()
    return _imported(path)


def extension_for(running: str, package: Path = PACKAGE) -> Path:
    """The extension's file for this torch: it uses torch's C++ classes, whose layout changes from one minor
    release to the next. Raises ImportError."""
    built = built_for(package)
    if not built:
        raise ImportError(
            f"torch_ucc in {package} was never built: run ci/setup, and import it from outside its sources."
        )
    release = ".".join(running.split("+")[0].split(".")[:2])
    if release not in built:
        raise ImportError(
            f"torch_ucc was built for torch {' and '.join(built)}, but torch {running} is running. "
            "Install a torch that it was built for, or build torch_ucc for this torch: in its source "
            "folder, run "
            "ci/setup or `pip install --force-reinstall --no-deps --no-build-isolation .`."
        )
    return built[release]


def built_for(package: Path = PACKAGE) -> dict[str, Path]:
    """The extensions in the package by the minor release of torch, such as 2.13, that each was built for."""
    start, end = "_core.torch-", EXTENSION_SUFFIXES[0]
    files = package.glob(f"{start}*{end}")
    built = {path.name[len(start) : -len(end)]: path for path in files}
    return dict(sorted(built.items(), key=lambda item: tuple(map(int, item[0].split(".")))))


def load_libraries() -> None:
    """UCX and UCC, those that the extension was built with or others. Raises ImportError."""
    info = build_info()
    said = {*os.environ, *user.in_files(os.environ)}
    loading.preload(info.UCC_PREFIX, info.UCX_PREFIX, said)


def backend_of(group: Any) -> Any:
    """Ours of a process group; None if it has none, or has no members before it is reconfigured."""
    reconfigurable = getattr(compiled(), "Reconfigurable", None)  # none before torch 2.14
    for device in group._device_types:
        backend = group._get_backend(torch.device(device))
        if reconfigurable is not None and isinstance(backend, reconfigurable):
            return backend.current
        if isinstance(backend, compiled().UccBackend):
            return backend
    return None


def build_info() -> ModuleType:
    """What the extensions were built with. Raises ImportError if there are none."""
    return importlib.import_module("torch_ucc._build_info")


def _imported(path: Path) -> ModuleType:
    spec = spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, str(path)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[NAME] = module
    return module
