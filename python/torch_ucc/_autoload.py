"""The entry point that `import torch` calls. Cheap, idempotent, and silent about everything but a failure."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from pathlib import Path


def autoload() -> None:
    """Register the backend names. Never raises: an exception here would break `import torch` for everyone.

    Nor does it load the extension, UCC or UCX; the first group does. In the command `torch-ucc` it does
    nothing unless torch is loaded: to import torch takes seconds, and `torch-ucc status` needs none.
    """
    if "torch" not in sys.modules and _is_command():
        return
    try:
        # First, for when torch_ucc is imported before torch: torch then calls here from inside this line.
        import torch  # noqa: F401

        from torch_ucc._register import register

        register()
    except Exception as error:
        with suppress(Exception):  # -W error turns the warning itself into an exception
            warnings.warn(
                f"torch_ucc could not register its backend: {error!r}", RuntimeWarning, stacklevel=2
            )


def _is_command() -> bool:
    """Whether this process was started as `torch-ucc ...` or `python -m torch_ucc ...`."""
    program = sys.argv[0] if sys.argv else ""
    as_module = program == "-m" and "torch_ucc" in sys.orig_argv
    return Path(program).name == "torch-ucc" or as_module
