"""Registration with torch.distributed, and the creator that it calls for each new group.

Imported by `import torch`: nothing here may be slow, or import the extension, before a group is created.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed import Backend

NAMES = ("ucc", "torch_ucc")
"""The second name is for a torch that has a backend "ucc" of its own, which torch asks first."""

CLOSE_AT_EXIT = timedelta(milliseconds=500)
"""How long a process that ends without closing its groups waits for peers which end alike."""

log = logging.getLogger("torch_ucc")
"""TORCH_LOGS=torch_ucc shows it, TORCH_LOGS=+torch_ucc with more."""

_OF_OTHERS = ("ProcessGroupNCCL.Options", "ProcessGroupXCCL.Options")
"""Torch hands the options of a group to each of its backends: those of "cpu:ucc,cuda:nccl" are nccl's."""

DEVICES = ["cpu", "cuda", "xpu", "privateuseone"]  # a list: torch would iterate over the letters of a string


def register() -> None:
    """Make the names known to torch.distributed, if this torch has it. Idempotent."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import Backend

    if all(_is_ours(Backend, name) for name in NAMES):
        return
    typed = _type()
    for name in NAMES:
        Backend.register_backend(name, create, extended_api=True, devices=list(DEVICES), **typed)
    found_by = main_name()
    if not typed:
        _name_groups()
    _end_coalescing_after_exceptions()
    if _asked_for("TORCH_UCC_AS_DEFAULT"):
        Backend.default_device_backend_map["cpu"] = found_by
    if _asked_for("TORCH_UCC_REPLACE_GLOO"):
        from torch_ucc._replace_gloo import replace_gloo

        replace_gloo()
    if found_by != NAMES[0]:
        warnings.warn(
            'This build of PyTorch has its own "ucc" backend, which init_process_group("ucc") uses: '
            'use the name "torch_ucc" for torch-ucc.',
            RuntimeWarning,
            stacklevel=2,
        )


def _asked_for(setting: str) -> bool:
    """Without the settings' own module, which `import torch` need not load. It refuses other values later."""
    return os.environ.get(setting, "").strip() == "1"


def use_as_default() -> None:
    """From now on, use this backend for CPU tensors if an init_process_group() names no backend."""
    from torch.distributed import Backend

    register()
    Backend.default_device_backend_map["cpu"] = main_name()


def main_name() -> str:
    """The name by which torch finds this backend and no other.

    Before 2.14, torch prefers a ucc that is built into it. Later, it takes whichever was registered last.
    """
    from torch.distributed import is_ucc_available

    return NAMES[1] if is_ucc_available() and not takes_type() else NAMES[0]


def _type() -> dict[str, Any]:
    """What has a group carry the type UCC instead of CUSTOM. Empty before torch 2.14, which cannot."""
    from torch.distributed import ProcessGroup

    return {"_backend_type": ProcessGroup.BackendType.UCC} if takes_type() else {}


def makers() -> dict[str, str]:
    """Who makes a group for CPU tensors in this process, by what the program asks for."""
    from torch.distributed import Backend

    from torch_ucc._replace_gloo import is_replaced

    named = {"ucc": "torch-ucc", "gloo": "torch-ucc" if is_replaced() else "torch"}
    default = Backend.default_device_backend_map["cpu"]
    return {**named, "no backend": named.get(default, default)}


def takes_type() -> bool:
    """Whether torch accepts the type of a backend's groups. Such a torch also registers gloo as a backend."""
    from torch.distributed import Backend

    return "_backend_type" in inspect.signature(Backend.register_backend).parameters


def _is_ours(backend: type[Backend], name: str) -> bool:
    plugin = backend._plugins.get(name.upper())
    return plugin is not None and plugin.creator_fn is create


def _name_groups() -> None:
    """Have each of our groups carry the type UCC, and each group have a default backend, as since torch 2.14.

    Earlier releases give the type CUSTOM to the group of any plugin, and programs take that for something
    else: TorchRec for a fake group, in which it exchanges nothing. And once a plugin is registered, they find
    no default for a map without nccl, such as "cpu:gloo": the name and the hooks of such a group fail.
    """
    from torch.distributed import distributed_c10d

    original = distributed_c10d._new_process_group_helper

    @functools.wraps(original)
    def helper(*args: Any, **kwargs: Any) -> Any:
        group, store = original(*args, **kwargs)
        if isinstance(group, torch.distributed.ProcessGroup):
            _name_group(group)
        return group, store

    distributed_c10d._new_process_group_helper = helper


def _name_group(group: torch.distributed.ProcessGroup) -> None:
    from torch.distributed import ProcessGroup, distributed_c10d

    config = distributed_c10d._world.pg_backend_config.get(group, "")
    # The name of a backend may contain colons, the name of a device cannot.
    names = dict(pair.split(":", 1) for pair in config.split(",") if pair)
    ours = [torch.device(device) for device, name in names.items() if name in NAMES]
    for device in ours:
        group._register_backend(device, ProcessGroup.BackendType.UCC, group._get_backend(device))
    default = group._get_backend_name()
    if ours and default in ("undefined", "custom"):
        group._set_default_backend(ProcessGroup.BackendType.UCC)
    elif default == "undefined" and "gloo" in names.values():
        group._set_default_backend(ProcessGroup.BackendType.GLOO)


def _end_coalescing_after_exceptions() -> None:
    """Have an exception in `_coalescing_manager` or `batch_isend_irecv` end the coalescing of a ucc group.

    Torch 2.13 leaves it open then: every later call of the group would be added to it, and never be made.
    """
    from torch.distributed import distributed_c10d

    original = distributed_c10d._coalescing_manager

    @functools.wraps(original)
    @contextlib.contextmanager
    def manager(group: Any = None, *args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            with original(group, *args, **kwargs) as coalesced:
                yield coalesced
        except BaseException as error:
            _drop_coalescing(group, error)
            raise

    distributed_c10d._coalescing_manager = manager
    setattr(torch.distributed, original.__name__, manager)  # it is imported there by name


def _drop_coalescing(group: Any, error: BaseException) -> None:
    if "torch_ucc._core" not in sys.modules:
        return
    from torch.distributed import distributed_c10d

    from torch_ucc._native import extension

    if group is None and distributed_c10d.is_initialized():
        group = distributed_c10d._get_default_group()
    if isinstance(group, torch.distributed.ProcessGroup) and (backend := extension.backend_of(group)):
        distributed_c10d._world.pg_coalesce_state.pop(group, None)
        backend.drop_coalescing(f"{type(error).__name__} ended it: {error}")


def create(group: Any, options: Any) -> Any:
    """Called by torch on each member of a new group; returns the c10d backend.

    `group` is torch's _DistributedBackendOptions, `options` the pg_options of the user or None.
    """
    from torch_ucc._native import extension

    compiled = extension.compiled()
    if type(options).__qualname__ in _OF_OTHERS:
        log.debug("group %r: ucc ignores %s", group.group_id, type(options).__qualname__)
        options = None
    if options is not None and not isinstance(options, compiled.Options):
        raise TypeError(f"pg_options of a ucc group must be torch_ucc.Options, not {type(options).__name__}")
    timeout = group.timeout
    if options is not None and options._timeout.total_seconds() >= 0:
        timeout = options._timeout
    if getattr(group, "enable_reconfigure", False) or getattr(options, "enable_reconfigure", False):
        return compiled.create_reconfigurable(
            group.store,
            group.group_rank,
            group.group_size,
            group.group_id,
            timeout,
            functools.partial(member_of_new_world, options),
        )
    # Empty means the default group.
    global_ranks = list(group.global_ranks_in_group) or list(range(group.group_size))
    return _member(
        options,
        store=group.store,
        rank=group.group_rank,
        timeout=timeout,
        group_id=group.group_id,
        world=_world_of(compiled, group),
        global_ranks=global_ranks,
    )


def member_of_new_world(
    options: Any, store: Any, rank: int, size: int, group_id: str, timeout: timedelta
) -> Any:
    """Creates this process's member of a group whose members are a world of their own."""
    from torch_ucc._native import extension

    return _member(
        options,
        store=store,
        rank=rank,
        timeout=timeout,
        group_id=group_id,
        world=extension.compiled().World(size),
        global_ranks=list(range(size)),
    )


def _member(options: Any, **group: Any) -> Any:
    """Creates this process's member of a group. `group` is what find_place() takes, without the settings."""
    from torch_ucc._group import group_options, planning
    from torch_ucc._native import extension
    from torch_ucc.topology.cores import usable_here

    began = time.monotonic()
    compiled = extension.compiled()
    rank, global_ranks = group["rank"], group["global_ranks"]
    settings = _settings()
    with told_by_profile():
        own: group_options.Both = (
            group_options.checked(compiled, options) if options is not None else ([], [])
        )
    settings.own_ucx, settings.own_ucc = own
    place = compiled.find_place(**group, settings=settings)
    planned = None
    if not place.is_shared:
        planned = planning.choose(place.exchange, rank, global_ranks)
        told = group_options.told((planned.ucx, planned.ucc), own)
        settings.ucx, settings.ucc = told
        settings.cores = usable_here()
        log.debug("group %r: options of UCX: %s; options of UCC: %s", group["group_id"], *told)
    with told_by_profile():
        backend = compiled.create_backend(place, settings)
    if planned is not None:
        planning.keep(compiled, backend.context, planned)
    log.info(
        "group %r: rank %d of %d, timeout %s, created in %.1f ms",
        group["group_id"],
        rank,
        len(global_ranks),
        group["timeout"],
        1e3 * (time.monotonic() - began),
    )
    log.debug("group %r: global ranks %s", group["group_id"], global_ranks)
    return backend


_worlds: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Of default groups that are not ours."""


def _world_of(compiled: Any, group: Any) -> Any:
    """That of the default group, for a group that torch derives from it; else a world of its own.

    Ranks alone do not tell: a process may be rank 0 of two jobs that meet over different stores.
    """
    from torch.distributed import distributed_c10d

    from torch_ucc._native import extension

    if not (group.global_ranks_in_group and distributed_c10d.is_initialized()):
        return compiled.World(group.group_size)
    default = distributed_c10d._get_default_group()
    _, its_store = distributed_c10d._world.pg_map[default]
    store = group.store
    while store is not its_store:
        if not isinstance(store, distributed_c10d.PrefixStore):
            return compiled.World(group.group_size)
        store = store.underlying_store
    if backend := extension.backend_of(default):
        return backend.world
    return _worlds.setdefault(default, compiled.World(default.size()))


def told_by_profile() -> contextlib.AbstractContextManager[None]:
    """While UCX and UCC start: they read what the profile tells them."""
    from torch_ucc import config

    if not (libraries := config.in_force().libraries):
        return contextlib.nullcontext()
    from torch_ucc.tuning.profile import applied

    return applied(libraries)


def _settings() -> Any:
    """Those of this process, read at its first group and then fixed; for the plan to be added."""
    from torch_ucc import config
    from torch_ucc._native import extension

    _prepare_process()
    return config.native(config.in_force(), extension.compiled().Settings())


@functools.cache
def _prepare_process() -> None:
    """Before the first group."""
    from torch_ucc import config
    from torch_ucc._native import extension, leftovers
    from torch_ucc.status import announce
    from torch_ucc.tracing import recorder

    leftovers.remove()
    # For a process that ends without destroy_process_group(): its peers may end otherwise, or not at all.
    limit = min(config.in_force().close_timeout, CLOSE_AT_EXIT)
    atexit.register(extension.compiled().wait_for_callbacks)  # the last registered is called first
    atexit.register(extension.compiled().close_all, limit)
    recorder.arm(config.in_force())
    announce.announce(extension.compiled())
