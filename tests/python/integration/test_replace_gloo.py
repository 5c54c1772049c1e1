"""Programs that name gloo, in processes where torch-ucc replaces it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc import _replace_gloo
from torch_ucc._torch import HAS_2_14
from torch_ucc.testing import run_ranks

CPU = torch.device("cpu")
NAMES = [
    pytest.param("gloo", id="by-name"),
    pytest.param("cpu:gloo", id="for-a-device"),
    pytest.param(None, id="by-default"),
]


def whose(group: dist.ProcessGroup | None = None) -> str:
    return type((group or dist.group.WORLD)._get_backend(CPU)).__name__  # type: ignore[union-attr]


def alone(name: str | None = "gloo", **options: Any) -> None:
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1, **options)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    torch_ucc.replace_gloo()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    torch_ucc.restore_gloo()


def every_group_is_ours(name: str | None) -> None:
    torch_ucc.replace_gloo()
    dist.init_process_group(name)
    rank, size = dist.get_rank(), dist.get_world_size()
    assert whose() == "UccBackend"
    assert dist.group.WORLD._get_backend_name() == "gloo"  # type: ignore[union-attr]
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(size))] * 5
    group = dist.new_group(backend="gloo")
    assert dist.get_backend(group) is dist.Backend.GLOO
    assert whose(group) == "UccBackend" and whose(dist.new_group()) == "UccBackend"
    dist.monitored_barrier(group, timeout=timedelta(seconds=30))
    found: list[Any] = [None] * size
    dist.all_gather_object(found, {"rank": rank}, group=group)
    assert found == [{"rank": each} for each in range(size)]
    part = dist.new_group([0])
    assert part is dist.GroupMember.NON_GROUP_MEMBER or dist.get_world_size(part) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_group_of_gloo_is_ours(name: str | None) -> None:
    run_ranks(every_group_is_ours, 2, name, init=False, env={"CUDA_VISIBLE_DEVICES": ""})


def said_of_both(name: str | None) -> list[tuple[Any, ...]]:
    """Of a group that torch-ucc makes in place of gloo, then of gloo's own."""
    found = []
    for _ in range(2):
        if found:
            torch_ucc.restore_gloo()
        else:
            torch_ucc.replace_gloo()
        alone(name)
        world = dist.group.WORLD
        assert world is not None
        devices = sorted(map(str, world._device_types))
        found.append(
            (
                whose(),
                world._get_backend_name(),
                dist.get_backend(),
                dist.get_backend_config(),
                devices,
            )
        )
        dist.destroy_process_group()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_torch_says_of_a_group_what_it_says_of_gloos(name: str | None) -> None:
    env = {"CUDA_VISIBLE_DEVICES": ""}
    ((ours, gloos),) = run_ranks(said_of_both, 1, name, init=False, env=env)
    assert (ours[0], gloos[0]) == ("UccBackend", "ProcessGroupGloo")
    assert ours[1:] == gloos[1:]


def test_gloo_comes_back(replaced: None) -> None:
    alone()
    assert whose() == "UccBackend"
    torch_ucc.restore_gloo()
    assert whose(dist.new_group(backend="gloo")) == "ProcessGroupGloo"
    assert whose() == "UccBackend", "a group stays what it is"
    torch_ucc.replace_gloo()
    torch_ucc.replace_gloo()
    assert whose(dist.new_group(backend="gloo")) == "UccBackend"
    torch_ucc.restore_gloo()
    torch_ucc.restore_gloo()
    assert whose(dist.new_group(backend="gloo")) == "ProcessGroupGloo"


def test_nothing_of_torch_stays_changed(replaced: None) -> None:
    torch_ucc.restore_gloo()
    before = {name: getattr(dist.distributed_c10d, name) for name in vars(dist.distributed_c10d)}
    plugins = dict(dist.Backend._plugins)
    torch_ucc.replace_gloo()
    torch_ucc.restore_gloo()
    assert {name: getattr(dist.distributed_c10d, name) for name in before} == before
    assert dict(dist.Backend._plugins) == plugins


def test_a_group_that_a_program_constructs_itself_is_gloos(replaced: None) -> None:
    made = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=20))
    made.allreduce([torch.ones(1)]).wait()
    assert type(made).__name__ == "ProcessGroupGloo"


def test_a_class_that_derives_from_gloos_is_gloos(replaced: None) -> None:
    base: Any = dist.distributed_c10d.ProcessGroupGloo

    class Derived(base):  # type: ignore[misc]
        pass

    made = Derived(dist.HashStore(), 0, 1, timedelta(seconds=20))
    assert type(made) is Derived and isinstance(made, dist.ProcessGroupGloo)
    assert isinstance(made, base) and issubclass(dist.ProcessGroupGloo, base)
    alone()
    assert not isinstance(dist.group.WORLD._get_backend(CPU), Derived)  # type: ignore[union-attr]


def test_other_backends_are_what_they_were(replaced: None) -> None:
    import torch.testing._internal.distributed.fake_pg  # registers it

    alone("cpu:gloo,meta:fake")
    world = dist.group.WORLD
    assert world is not None
    assert whose() == "UccBackend"
    assert type(world._get_backend(torch.device("meta"))).__name__ != "UccBackend"
    assert dist.get_backend_config() == "cpu:gloo,meta:fake"


def test_options_of_gloo_are_ignored_with_a_warning(replaced: None) -> None:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(interface="lo")]
    with pytest.warns(RuntimeWarning, match="ignores its pg_options for gloo"):
        alone(pg_options=options)
    assert whose() == "UccBackend"


def test_options_of_ucc_are_taken(replaced: None) -> None:
    options = torch_ucc.Options()
    options._timeout = timedelta(seconds=77)
    alone(pg_options=options)
    assert dist.group.WORLD._get_backend(CPU).options._timeout == timedelta(seconds=77)  # type: ignore[union-attr]


def test_the_timeout_can_be_changed(replaced: None) -> None:
    alone()
    backend = dist.group.WORLD._get_backend(CPU)  # type: ignore[union-attr]
    change = dist.set_timeout if HAS_2_14 else dist.distributed_c10d._set_pg_timeout
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        change(timedelta(seconds=33), dist.group.WORLD)
    assert backend.options._timeout == timedelta(seconds=33)


def test_a_process_says_so_once() -> None:
    program = (
        "import torch, torch_ucc, torch.distributed as dist\n"
        "torch_ucc.replace_gloo()\n"
        "for _ in range(2):\n"
        "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "    dist.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            "PATH": "",
            "TORCH_LOGS": "torch_ucc",
            "TORCH_UCC_REPLACE_GLOO": "1",
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stderr.count("torch-ucc creates the groups of gloo") == 1, done.stderr


def save_and_load(folder: str) -> None:
    """Torch starts a process for each rank that writes, and names gloo for the group of these processes."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    torch_ucc.replace_gloo()
    dist.init_process_group("gloo")
    state = {"weight": torch.full((8,), 5.0), "step": torch.tensor(3)}
    saved = dcp.async_save(
        state,
        checkpoint_id=folder,
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        process_group=dist.group.WORLD,
    )
    saved.result()
    loaded = {"weight": torch.zeros(8), "step": torch.tensor(0)}
    dcp.load(loaded, checkpoint_id=folder)
    assert loaded["step"].item() == 3 and loaded["weight"].tolist() == [5.0] * 8


def test_asynchronous_checkpoints_by_process(tmp_path: Path) -> None:
    env = {"TORCH_UCC_REPLACE_GLOO": "1", "CUDA_VISIBLE_DEVICES": ""}
    # The process that torch starts imports torch anew, which takes more than a minute on a busy machine.
    run_ranks(save_and_load, 2, str(tmp_path / "checkpoint"), init=False, env=env, timeout=300.0)


def told_by_doctor(monkeypatch: pytest.MonkeyPatch, *replaced: str) -> list[str]:
    """What each rank is told of who makes its groups, where `replaced` are the ranks' settings."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    program = (
        "import sys, datetime, torch.distributed as dist\n"
        "from torch_ucc._register import makers\n"
        "from torch_ucc.topology.reach import compare_makers\n"
        "rank, size, port = map(int, sys.argv[1:])\n"
        "store = dist.TCPStore('127.0.0.1', port)\n"
        "limit = datetime.timedelta(seconds=60)\n"
        "print(*(f.grade + ': ' + f.what for f in compare_makers(store, rank, size, makers(), limit)))\n"
    )
    ranks = []
    for rank, setting in enumerate(replaced):
        monkeypatch.setenv("TORCH_UCC_REPLACE_GLOO", setting)
        command = [sys.executable, "-c", program, *map(str, (rank, len(replaced), store.port))]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return [each.communicate(timeout=100)[0].strip() for each in ranks]


def test_the_doctor_says_who_makes_which_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    served = ", ".join(f"by {{}} if a program asks for {name}" for name in ("ucc", "gloo", "no backend"))
    ours, mixed = served.format(*["torch-ucc"] * 3), served.format("torch-ucc", "torch", "torch")
    assert told_by_doctor(monkeypatch, "1", "1") == [f"note: groups for CPU tensors are served {ours}", ""]
    first, second = told_by_doctor(monkeypatch, "0", "1")
    assert first == f"note: groups for CPU tensors are served {mixed}"
    assert second.startswith(
        f"broken: on rank 1, groups for CPU tensors are served {ours}, but on rank 0 {mixed}: "
    )


def test_the_module_is_not_loaded_unless_asked_for() -> None:
    program = "import sys, torch; print('torch_ucc._replace_gloo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False"
    assert not _replace_gloo.is_replaced()
