"""Registration by `import torch`, the creator that torch calls, and the guard before the extension."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from datetime import timedelta
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo
from torch_ucc import _autoload, _register, config
from torch_ucc._native import extension
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks
from torch_ucc.topology import cores
from torch_ucc.topology.algorithms import ONE_HOST


def in_fresh_process(program: str, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() + done.stderr.strip()


# --- the entry point ----------------------------------------------------------------------------------------


def test_import_torch_is_enough_and_loads_nothing() -> None:
    printed = in_fresh_process(
        "import sys, torch\n"
        "assert {'UCC', 'TORCH_UCC'} <= torch.distributed.Backend._plugins.keys()\n"
        "assert 'torch_ucc._core' not in sys.modules and 'torch_ucc._native.loading' not in sys.modules\n"
        "mapped = open('/proc/self/maps').read()\n"
        "assert 'libucc' not in mapped and 'libucp' not in mapped\n"
    )
    assert printed == ""


def test_torch_ucc_may_be_imported_before_torch() -> None:
    assert (
        in_fresh_process("import torch_ucc, torch; print('UCC' in torch.distributed.Backend._plugins)")
        == "True"
    )


def test_both_groups_of_entry_points_name_the_hook() -> None:
    for group in ("torch.backends", "torch.distributed.backends"):
        (entry,) = importlib.metadata.entry_points(group=group, name="torch_ucc")
        assert entry.load() is _autoload.autoload


ALONE = (
    "import torch.distributed as dist\n"
    "dist.init_process_group({}store=dist.HashStore(), rank=0, world_size=1)\n"
)


def test_the_entry_points_serve_where_torch_calls_no_hook_at_import() -> None:
    """By the second name: for the first torch has an entry point of its own, and takes either."""
    if not HAS_2_14:
        pytest.skip("torch before 2.14 reads no entry points of backends")
    program = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n" + ALONE.format("'torch_ucc', ")
    assert in_fresh_process(program + "print(dist.get_backend(), dist.group.WORLD.name())") == "torch_ucc ucc"


@pytest.mark.parametrize(
    "how",
    [
        "import os; os.environ['TORCH_UCC_AS_DEFAULT'] = '1'\n",
        "import torch_ucc; torch_ucc.use_as_default()\n",
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "import torch, torch_ucc; torch_ucc.use_as_default()\n",
    ],
)
def test_it_can_be_what_a_group_without_a_name_takes(how: str) -> None:
    shown = "import torch; print(type(dist.group.WORLD._get_backend(torch.device('cpu'))).__name__)\n"
    hidden = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
    assert in_fresh_process(hidden + how + ALONE.format("") + shown) == "UccBackend"
    assert in_fresh_process(hidden + ALONE.format("") + shown) == "ProcessGroupGloo"


def test_the_hook_loads_three_small_modules_and_does_little() -> None:
    """Import included, as in `import torch`: half a millisecond, told by its calls, for load stretches time.

    A frozen dataclass more would be 870 calls and returns, and `import decimal` 1450.
    """
    program = (
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "import sys, torch, importlib.metadata as m\n"
        "(entry,) = m.entry_points(group='torch.backends', name='torch_ucc')\n"
        "before, events = set(sys.modules), []\n"
        "sys.setprofile(lambda *event: events.append(event[1]))\n"
        "entry.load()()\n"
        "sys.setprofile(None)\n"
        "print(len(events), *sorted(set(sys.modules) - before))\n"
    )
    events, *modules = in_fresh_process(program).split()
    assert modules == ["torch_ucc", "torch_ucc._autoload", "torch_ucc._register"]
    assert 500 < int(events) < 2500


def test_import_torch_loads_three_small_modules_more() -> None:
    """What these cost is above."""
    names = "import sys, torch; print(*sorted(n for n in sys.modules if n.startswith('torch_ucc')))"
    assert in_fresh_process(names).split() == [
        "torch_ucc",
        "torch_ucc._autoload",
        "torch_ucc._register",
    ]


def test_the_hook_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(_register, "register", broken)
    with pytest.warns(RuntimeWarning, match="could not register its backend.*no such luck"):
        _autoload.autoload()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _autoload.autoload()


# --- registration -------------------------------------------------------------------------------------------


@pytest.fixture
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """torch's table of plugins, emptied for the test."""
    plugins = dict(dist.Backend._plugins)
    dist.Backend._plugins.clear()
    yield dist.Backend._plugins
    dist.Backend._plugins.clear()
    dist.Backend._plugins.update(plugins)


def test_registration_is_idempotent_and_leaves_other_plugins(unregistered: dict[str, Any]) -> None:
    dist.Backend.register_backend("someone_else", lambda *_: None, devices=["cpu"])
    other = unregistered["SOMEONE_ELSE"]
    _register.register()
    once = dict(unregistered)
    _register.register()
    assert unregistered == once
    assert unregistered["SOMEONE_ELSE"] is other
    assert unregistered["UCC"].extended_api and unregistered["TORCH_UCC"].extended_api
    assert dist.Backend.backend_capability["ucc"] == ["cpu", "cuda", "xpu", "privateuseone"]


def test_the_defaults_of_the_devices_stay(unregistered: dict[str, Any]) -> None:
    before = dict(dist.Backend.default_device_backend_map)
    _register.register()
    assert dist.Backend.default_device_backend_map == before


def test_a_torch_without_distributed_is_left_alone(
    unregistered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    _register.register()
    assert not unregistered


def test_a_ucc_inside_torch_that_hides_ours_is_said_once(
    unregistered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "is_ucc_available", lambda: True)
    if not HAS_2_14:  # from 2.14 on torch takes whichever registered last, which is ours
        with pytest.warns(RuntimeWarning, match='use the name "torch_ucc" for torch-ucc'):
            _register.register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _register.register()


# --- the creator, with a stand-in for the extension ---------------------------------------------------------


class Gloo(ProcessGroupGloo):
    """With what ours has beside."""

    context = 1
    world = None


class StandIn:
    """Records what the extension would be asked for; gives gloo instead."""

    Settings = SimpleNamespace
    UccBackend = Gloo
    Options = type("Options", (), {"_timeout": timedelta(milliseconds=-1), "ucc": {}, "ucx": {}})  # unset

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def find_place(self, **group: Any) -> SimpleNamespace:
        """Only the first call is about ranks that have none yet."""
        return SimpleNamespace(is_shared=bool(self.calls), group=group, exchange=self.exchange)

    def create_backend(self, place: SimpleNamespace, settings: SimpleNamespace) -> Any:
        assert settings is place.group["settings"]
        self.calls.append(place.group)
        store, rank, timeout = (place.group[name] for name in ("store", "rank", "timeout"))
        return Gloo(store, rank, len(place.group["global_ranks"]), timeout=timeout)

    def World(self, size: int) -> object:  # noqa: N802
        return size, object()

    def open_contexts(self) -> list[int]:
        return []

    def exchange(self, mine: bytes) -> list[bytes]:
        return [mine]

    def tell(self, key: str, json: str) -> None:
        """To other processes: there is no recorder."""

    def close_all(self, limit: timedelta) -> None:
        """At exit: there is nothing to close."""

    def wait_for_callbacks(self) -> None:
        """Nor anything that runs."""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    compiled = StandIn()
    monkeypatch.setattr(extension, "compiled", lambda: compiled)
    for read_once in (_register._prepare_process, config.in_force):
        read_once.cache_clear()
    yield compiled
    for read_once in (_register._prepare_process, config.in_force):
        read_once.cache_clear()
    if dist.is_initialized():
        dist.destroy_process_group()


def init_alone(backend: str, **options: Any) -> None:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)


def default_name(backend: str) -> str:
    """Torch 2.14 calls a group by the backend of the accelerator, if a map has one."""
    return "gloo" if HAS_2_14 and backend.endswith("cuda:gloo") else "ucc"


@pytest.mark.parametrize(
    "backend",
    ["ucc", "torch_ucc", "UCC", "cpu:ucc", "cpu:ucc,cuda:ucc", "cpu:gloo,cuda:ucc", "cpu:ucc,cuda:gloo"],
)
def test_a_group_of_each_device_map(backend: str, stand_in: StandIn) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        init_alone(backend)
        assert len(stand_in.calls) == 1  # one backend for all of its devices
        # Torch 2.13 alone would leave the default backend of a map undefined.
        assert dist.group.WORLD.name() == default_name(backend)
        assert dist.group.WORLD._has_hooks() is False
        x = torch.ones(3)
        dist.all_reduce(x)
        dist.barrier()
        dist.new_group([0])
        dist.destroy_process_group()


def test_a_group_of_another_backend_has_a_default_too(stand_in: StandIn) -> None:
    """Torch 2.13 finds none once a plugin is registered."""
    init_alone("cpu:gloo")
    assert dist.group.WORLD.name() == "gloo"
    assert stand_in.calls == []


def test_a_group_of_another_backend_may_have_a_colon_in_its_name(stand_in: StandIn) -> None:
    """As those of torchft have."""

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("own:name", create, devices=["cpu"])
    init_alone("gloo")
    group = dist.new_group([0], backend="own:name")
    dist.barrier(group=group)
    assert stand_in.calls == []


def test_a_map_of_the_second_name(stand_in: StandIn) -> None:
    init_alone("cpu:torch_ucc,cuda:torch_ucc")
    assert dist.group.WORLD.name() == "ucc"
    x = torch.ones(3)
    dist.all_reduce(x)
    assert len(stand_in.calls) == 1


def test_a_map_with_nccl(stand_in: StandIn) -> None:
    if dist.is_nccl_available():
        pytest.skip("this torch has nccl: a group of it needs a GPU, and the tests of devices make one")
    with pytest.raises(RuntimeError, match="doesn't have NCCL built in"):
        init_alone("cpu:ucc,cuda:nccl")
    assert not dist.is_initialized()
    init_alone("ucc")  # the failure left nothing behind that would be in the way


def test_what_the_extension_is_told_of_the_default_group(stand_in: StandIn) -> None:
    init_alone("ucc", timeout=timedelta(seconds=7), pg_options=stand_in.Options())
    (told,) = stand_in.calls
    assert told["timeout"] == timedelta(seconds=7)
    assert told["group_id"] == dist.group.WORLD.group_name
    assert (told["rank"], told["global_ranks"]) == (0, [0])


def test_a_timeout_among_the_options_counts(stand_in: StandIn) -> None:
    options = stand_in.Options()
    options._timeout = timedelta(seconds=3)
    init_alone("ucc", timeout=timedelta(seconds=7), pg_options=options)
    (told,) = stand_in.calls
    assert told["timeout"] == timedelta(seconds=3)


def test_options_of_another_backend_are_refused(stand_in: StandIn) -> None:
    with pytest.raises(TypeError, match=r"pg_options of a ucc group .* not SimpleNamespace"):
        init_alone("ucc", pg_options=SimpleNamespace())


def test_settings_are_read_once_and_shared(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_UCC_SPIN", "123us")
    init_alone("ucc")
    monkeypatch.setenv("TORCH_UCC_SPIN", "456us")
    dist.new_group([0])
    first, second = (told["settings"] for told in stand_in.calls)
    assert first.spin == second.spin == timedelta(microseconds=123)


def test_ranks_wait_by_the_cores_that_their_container_gives_them(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_here", lambda: 3)
    init_alone("ucc")
    assert stand_in.calls[0]["settings"].cores == 3


def test_the_plan_is_made_once_and_told(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    init_alone("ucc")
    dist.new_group([0])
    first, second = (told["settings"] for told in stand_in.calls)
    assert first.ucx == [("NET_DEVICES", "lo")]
    assert first.ucc == [("TL_UCP_TUNE", ONE_HOST), ("ESTIMATED_NUM_PPN", "1"), *first.ucx]
    assert not hasattr(second, "ucc"), "it shares the context"


def test_a_plan_that_cannot_work_is_refused(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "exchange", lambda mine: [mine] * 2)
    monkeypatch.setenv("UCX_TLS", "rc")
    with pytest.raises(ValueError, match=r"this group cannot work: UCX_TLS=rc on rank 0 .* no way to rank 1"):
        init_alone("ucc")
    assert stand_in.calls == []


def told_of_a_subgroup() -> dict[str, Any]:
    """On a rank of a gloo world: what the extension is told of the group of rank 1 alone."""
    compiled = StandIn()
    extension.compiled = lambda: compiled  # type: ignore[assignment]
    dist.new_group([1], backend="ucc")
    dist.barrier()  # the rank outside must not leave while the other one still connects to it
    told = compiled.calls[0] if compiled.calls else {}
    return {name: told[name] for name in ("rank", "global_ranks") if told}


def test_what_the_extension_is_told_of_a_subgroup_in_a_world_of_another_backend() -> None:
    # The timeout is gloo's for the start of a group, too.
    outside, inside = run_ranks(told_of_a_subgroup, 2, backend="gloo", timeout=300.0)
    assert outside == {}
    assert inside == {"rank": 0, "global_ranks": [1]}


def test_each_group_has_keys_of_its_own(stand_in: StandIn) -> None:
    init_alone("cpu:ucc,cuda:ucc")
    dist.new_group([0])
    first, second = (told["store"] for told in stand_in.calls)
    first.set("key", "value")
    assert not second.check(["key"])


# --- the guard ----------------------------------------------------------------------------------------------


def made_for(folder: Path, *releases: str) -> dict[str, Path]:
    """A package with an extension for each."""
    files = {release: folder / f"_core.torch-{release}{EXTENSION_SUFFIXES[0]}" for release in releases}
    for file in files.values():
        file.touch()
    return files


@pytest.mark.parametrize("running", ["2.13.0", "2.13.1+cpu", "2.13.0a0+git1234"])
def test_every_patch_release_has_the_extension_of_its_release(running: str, tmp_path: Path) -> None:
    files = made_for(tmp_path, "2.9", "2.13", "2.14")
    assert extension.extension_for(running, tmp_path) == files["2.13"]


@pytest.mark.parametrize("running", ["2.12.1", "2.14.0+cu130", "3.13.0"])
def test_a_torch_without_an_extension_is_told_which_have_one(running: str, tmp_path: Path) -> None:
    made_for(tmp_path, "2.13", "2.9")
    (tmp_path / "_core.torch-2.14.cpython-39-x86_64-linux-gnu.so").touch()  # for another Python
    with pytest.raises(ImportError) as error:
        extension.extension_for(running, tmp_path)
    assert f"built for torch 2.9 and 2.13, but torch {running} is running. Install" in str(error.value)


def test_a_package_without_extensions_says_so(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="was never built: run ci/setup"):
        extension.extension_for("2.13.0", tmp_path)


def test_the_guard_stands_before_the_extension() -> None:
    """The sentence comes from init_process_group, and nothing was loaded."""
    printed = in_fresh_process(
        "import sys, torch, torch.distributed as dist\n"
        "torch.__version__ = '2.0.1'\n"
        "try: dist.init_process_group('ucc', store=dist.HashStore(), rank=0, world_size=1)\n"
        "except ImportError as error: print(error)\n"
        "assert 'torch_ucc._core' not in sys.modules and 'libucc' not in open('/proc/self/maps').read()\n"
    )
    assert re.match(r"torch_ucc was built for torch .+, but torch 2\.0\.1 is running", printed)
