"""The entry point that `import torch` calls. Cheap, idempotent, and silent about everything but a failure."""

from __future__ import annotations

import warnings
from contextlib import suppress


def autoload() -> None:
    """Register the backend names. Never raises: an exception here would break `import torch` for everyone.

    Nor does it load the extension, UCC or UCX; the first group does.
    """
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
