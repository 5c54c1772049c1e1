"""`ci/wheels`: what it does to a wheel after it was built. `ci/wheels try` shows that the wheels run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

LIBRARY = Path(__file__).resolve().parents[3] / "ci" / "lib"
EPOCH = 1_700_000_000
pytestmark = pytest.mark.skipif(not LIBRARY.is_dir(), reason="the script is part of the sources only")

METADATA = """\
Metadata-Version: 2.4
Name: torch-ucc
Requires-Dist: torch<2.16,>=2.11
Requires-Dist: libucx-cu12>=1.21
"""
WAITS = """
#include <condition_variable>
#include <mutex>
extern "C" int turn() {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock<std::mutex> lock(mutex);
  changed.notify_all();
  return lock.owns_lock() ? 1 : (changed.wait(lock), 0);
}
"""


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(LIBRARY))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
    import wheels

    return wheels


def a_tree(folder: Path, order: tuple[str, ...] = ("one.py", "_core.so")) -> Path:
    for name in order:
        (folder / "torch_ucc").mkdir(parents=True, exist_ok=True)
        (folder / "torch_ucc" / name).write_text(name)
    info = folder / "torch_ucc-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    return folder


def test_a_wheel_is_the_same_whatever_the_order_and_time_of_its_files(
    wheels: ModuleType, tmp_path: Path
) -> None:
    digests = set()
    for name, order in (("a", ("one.py", "_core.so")), ("b", ("_core.so", "one.py"))):
        wheels.pack(a_tree(tmp_path / name, order), tmp_path / f"{name}.whl")
        digests.add(hashlib.sha256((tmp_path / f"{name}.whl").read_bytes()).hexdigest())
    assert len(digests) == 1
    with zipfile.ZipFile(tmp_path / "a.whl") as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        record = archive.read("torch_ucc-1.dist-info/RECORD").decode().splitlines()
    assert {entry.date_time for entry in entries.values()} == {time.gmtime(EPOCH)[:6]}
    assert {line.split(",")[0] for line in record} == set(entries)
    assert entries["torch_ucc/_core.so"].external_attr >> 16 == 0o100755
    assert entries["torch_ucc/one.py"].external_attr >> 16 == 0o100644


def test_pip_accepts_it(wheels: ModuleType, tmp_path: Path) -> None:
    tree = a_tree(tmp_path / "tree")
    info = tree / "torch_ucc-1.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-ucc\nVersion: 1\n")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
    wheel = tmp_path / "torch_ucc-1-py3-none-any.whl"
    wheels.pack(tree, wheel)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "-t",
        tmp_path / "site",
        wheel,
    )
    subprocess.run(pip, check=True, timeout=120)
    assert (tmp_path / "site" / "torch_ucc" / "one.py").read_text() == "one.py"


def test_it_requires_the_torches_that_it_is_for(wheels: ModuleType, tmp_path: Path) -> None:
    tree = a_tree(tmp_path)
    wheels.narrow_torch(tree, ["2.14", "2.13"])
    written = (tree / "torch_ucc-1.dist-info" / "METADATA").read_text()
    assert written == METADATA.replace("torch<2.16,>=2.11", "torch<2.15,>=2.13")


def test_torches_with_a_gap_are_refused(wheels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is a gap"):
        wheels.narrow_torch(a_tree(tmp_path), ["2.12", "2.14"])


def test_a_function_of_an_older_libstdcxx_is_asked_for(wheels: ModuleType, tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no c++")
    (tmp_path / "waits.cc").write_text(WAITS)
    library = tmp_path / "waits.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "waits.cc"], check=True, timeout=120
    )
    ((symbol, (new, old)),) = wheels.IN_TWO_VERSIONS.items()
    if new not in {need.version for need in wheels.elf.ElfFile(library).needs()}:
        pytest.skip(f"this compiler's libstdc++ does not have {new}")
    wheels.ask_for_old_versions(library)
    needs = wheels.elf.ElfFile(library).needs()
    assert new not in {need.version for need in needs}
    assert symbol in {
        name for need in needs if need.version == old for name in wheels.elf.ElfFile(library).symbols_of(need)
    }
    # Loaded by another process, with all symbols bound at once.
    load = "import ctypes, os, sys; print(ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW).turn())"
    done = subprocess.run(
        [sys.executable, "-c", load, library], check=True, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
