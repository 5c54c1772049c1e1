"""Makes the groups that a program asks gloo for. Loaded only where that is asked for.

Torch says of such a group what the program asked for: `get_backend()` is "gloo", its type is GLOO. Its
backend object and everything that torch_ucc prints of it say "ucc".
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch.distributed import Backend, ProcessGroup, ProcessGroupGloo, distributed_c10d

from torch_ucc import _register

log = logging.getLogger("torch_ucc")

GLOO = Backend.GLOO

_lock = threading.RLock()  # register() may call replace_gloo()
_undo: list[Any] = []
"""What takes back the present replacement, in order. Empty where gloo is torch's own."""


def replace_gloo() -> None:
    """From now on, create each group of this process that asks for gloo, or gets it by default, with ucc.

    All ranks of such a group must call this before they create it. Existing groups do not change. A
    `ProcessGroupGloo` that the program constructs itself stays gloo. A second call has no effect.
    """
    _register.register()
    with _lock:
        if _undo:
            return
        # Torch 2.14 makes gloo's groups as it makes those of any backend: by a registered function.
        if _register.takes_type():
            _by_registration()
        else:
            _by_patch()


def restore_gloo() -> None:
    """From now on, let gloo create its groups itself again. A second call has no effect."""
    with _lock:
        while _undo:
            _undo.pop()()


def is_replaced() -> bool:
    return bool(_undo)


def _by_registration() -> None:
    plugins = Backend._plugins
    before = plugins.get(GLOO.upper())  # none: torch registers gloo when it is first used
    Backend.register_backend(
        GLOO,
        _create,
        extended_api=True,
        devices=Backend.backend_capability[GLOO],
        **{"_backend_type": ProcessGroup.BackendType.GLOO},  # the stubs of 2.13 lack it
    )
    if before is None:
        _undo.append(lambda: plugins.pop(GLOO.upper()))
    else:
        _undo.append(lambda: plugins.update({GLOO.upper(): before}))


def _create(group: Any, options: Any) -> Any:
    _say_so()
    return _register.create(group, _without_those_of_gloo(options))


@functools.cache
def _say_so() -> None:
    """Once in a process, at its first group: torch sets up its loggers after it has called us."""
    log.info("torch-ucc creates the groups of gloo in this process")


def _by_patch() -> None:
    """Torch 2.13 calls a class by its name in `distributed_c10d`, and afterwards asks what it is of."""
    _patch("ProcessGroupGloo", _StandIn())
    _patch("_new_process_group_helper", _wrapped("_new_process_group_helper", _new_group))
    _patch("_create_process_group_wrapper", _wrapped("_create_process_group_wrapper", _new_wrapper))


def _patch(name: str, replacement: Any) -> None:
    original = getattr(distributed_c10d, name)
    setattr(distributed_c10d, name, replacement)
    _undo.append(lambda: setattr(distributed_c10d, name, original))


def _wrapped(name: str, replacement: Any) -> Any:
    """`replacement` is called with the function of torch that it stands in for, then as that is."""
    original = getattr(distributed_c10d, name)
    return functools.wraps(original)(functools.partial(replacement, original))


class _Call(threading.local):
    """The call of torch that makes a group in this thread."""

    arguments: dict[str, Any] | None = None


_call = _Call()


@contextlib.contextmanager
def _during(arguments: dict[str, Any] | None) -> Iterator[None]:
    before, _call.arguments = _call.arguments, arguments
    try:
        yield
    finally:
        _call.arguments = before


def _new_group(original: Any, *args: Any, **kwargs: Any) -> Any:
    with _during(inspect.signature(original).bind(*args, **kwargs).arguments):
        return original(*args, **kwargs)


def _new_wrapper(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Of TORCH_DISTRIBUTED_DEBUG=DETAIL, which compares calls by a group of gloo that it constructs."""
    with _during(None):
        return original(*args, **kwargs)


class _StandIn:
    """Called by torch for gloo's part of a group, and by a program for a group that it constructs itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made_by_torch = _call.arguments
        if made_by_torch is None:
            return ProcessGroupGloo(*args, **kwargs)
        return _in_place_of_gloo(made_by_torch, *args, **kwargs)

    def __instancecheck__(self, candidate: Any) -> bool:
        if isinstance(candidate, ProcessGroupGloo):
            return True
        core = sys.modules.get("torch_ucc._core")
        return core is not None and isinstance(candidate, core.UccBackend)

    def __subclasscheck__(self, candidate: type) -> bool:
        return issubclass(candidate, ProcessGroupGloo)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A class that derives from the stand-in derives from gloo's."""
        return (ProcessGroupGloo,)

    def __getattr__(self, name: str) -> Any:
        return getattr(ProcessGroupGloo, name)


def _in_place_of_gloo(arguments: dict[str, Any], store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    group = distributed_c10d._DistributedBackendOptions()  # type: ignore[attr-defined]
    group.store, group.group_rank, group.group_size, group.timeout = store, rank, size, timeout
    group.group_id = arguments["group_name"]
    group.global_ranks_in_group = arguments["global_ranks_in_group"]
    return _create(group, arguments.get("backend_options"))


def _without_those_of_gloo(options: Any) -> Any:
    if type(options).__qualname__.split(".")[0] != "ProcessGroupGloo":
        return options
    warnings.warn(
        "torch-ucc creates this group in place of gloo, and ignores its pg_options for gloo.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None
