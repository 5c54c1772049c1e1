"""What ci/wheel makes: all sources, nothing of the machine, every licence; compiled anew by test_gpu_pack."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
PYPROJECT = CHECKOUT / "pyproject.toml"

pytestmark = pytest.mark.skipif(not (CHECKOUT / "cpp").is_dir(), reason="there are no sources here")


@pytest.mark.slow
def test_the_sdist_holds_the_sources_and_nothing_that_was_made(repository: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive if not member.isdir()}
    told = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(told, cwd=repository, check=True, stdout=subprocess.PIPE, text=True).stdout
    sources = {name for name in listed.splitlines() if (repository / name).exists()}
    assert held == sources | {"PKG-INFO"}


@pytest.mark.slow
def test_all_files_bear_the_time_of_the_release(sdist: Path, wheel: Path, epoch: int) -> None:
    with tarfile.open(sdist) as archive:
        assert {member.mtime for member in archive} == {epoch}
    with zipfile.ZipFile(wheel) as archive:
        assert {member.date_time for member in archive.infolist()} == {time.gmtime(epoch)[:6]}


@pytest.mark.slow
def test_no_file_tells_where_it_was_built(wheel: Path) -> None:
    place = re.compile("|".join(map(re.escape, (str(CHECKOUT), sys.prefix))).encode())
    with zipfile.ZipFile(wheel) as archive:
        telling = [name for name in archive.namelist() if place.search(archive.read(name))]
    assert telling == []


@pytest.mark.slow
def test_it_carries_the_licence_of_all_that_it_carries(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {Path(name).name: name for name in archive.namelist()}
        texts = {name: archive.read(path).decode() for name, path in files.items() if "/licen" in path}
    libraries = {name for name in files if name.endswith((".so", ".so.1"))}
    # Compiled in; the extension is ours.
    assert "torch-ucc authors" in texts["LICENSE"]
    assert "Wenzel Jakob" in texts["pybind11.txt"]
    others = {name for name in libraries if not name.startswith(("_core.", "libtorch_ucc_"))}
    if others:
        assert {re.split(r"[_.]", name)[0] for name in others} == {"libucc"}
        assert "Upstream-Name: UCC" in texts["UCC"] and "BSD-3-Clause" in texts["UCC"]


def test_the_version_is_written_once() -> None:
    """A pin of another package, `name==version`, may have the same digits."""
    (version,) = re.findall(r'^version = "(.*)"$', PYPROJECT.read_text(), re.MULTILINE)
    alone = re.compile(rf"(?<![\d.])(?<!==){re.escape(version)}(?![\d.])")
    sources = [
        *CHECKOUT.glob("*.txt"),
        *(path for folder in ("cpp", "cmake", "python", "ci") for path in (CHECKOUT / folder).rglob("*")),
    ]
    holders = [
        path.name for path in sources if path.is_file() and alone.search(path.read_text(errors="ignore"))
    ]
    assert holders == []
