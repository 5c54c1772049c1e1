"""Segments of the dead go, and nobody else's do."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_ucc._native import leftovers

OLD = 2 * leftovers.MIN_AGE


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    return made(tmp_path / f"{leftovers.PREFIX}1234abcd")


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Path]:
    """Of this process alone: others come and go, and are looked at in the last test."""
    folder = tmp_path / "proc"
    folder.mkdir()
    (folder / str(os.getpid())).symlink_to("/proc/self")
    namespace = folder / "self" / "ns"
    namespace.mkdir(parents=True)
    (namespace / "pid").symlink_to("pid:[4026531836]")
    return folder


def made(path: Path, age: float = OLD) -> Path:
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_what_nobody_uses_is_removed(segment: Path, proc: Path) -> None:
    assert leftovers.remove(segment.parent, proc) == [segment.name]
    assert not segment.exists()


def test_what_somebody_has_mapped_stays(segment: Path, proc: Path) -> None:
    with segment.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    with mapped:
        assert leftovers.remove(segment.parent, proc) == []
    assert segment.exists()


def test_a_process_with_a_file_of_any_name(segment: Path, proc: Path) -> None:
    other = proc / "4000000"
    other.mkdir()
    (other / "maps").write_bytes(b"7f00-7f01 r--p 00000000 00:01 7 /tmp/caf\xe9\n")
    assert leftovers.remove(segment.parent, proc) == [segment.name]


def test_what_is_young_stays(tmp_path: Path, proc: Path) -> None:
    young = made(tmp_path / f"{leftovers.PREFIX}5678", age=0.0)
    assert leftovers.remove(tmp_path, proc) == [] and young.exists()


def test_what_is_not_of_ucx_stays(tmp_path: Path, proc: Path) -> None:
    other = made(tmp_path / "torch_1234")
    assert leftovers.remove(tmp_path, proc) == [] and other.exists()


def test_where_processes_are_hidden_all_stays(segment: Path, proc: Path) -> None:
    (proc / "self/ns/pid").unlink()
    (proc / "self/ns/pid").symlink_to("pid:[4026532000]")
    assert leftovers.remove(segment.parent, proc) == [] and segment.exists()


def test_what_cannot_be_looked_at_is_left(tmp_path: Path) -> None:
    assert leftovers.remove(tmp_path / "missing", tmp_path) == []


@pytest.mark.skipif(
    Path("/proc/self/ns/pid").readlink() != Path(leftovers.INITIAL_PID_NAMESPACE),
    reason="in a pid namespace of its own nothing is removed",
)
def test_on_this_machine() -> None:
    path = made(Path(f"/dev/shm/{leftovers.PREFIX}test_{os.getpid()}"))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert path.name not in leftovers.remove()
    assert path.name in leftovers.remove() and not path.exists()
