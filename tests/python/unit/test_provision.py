"""`ci/provision-ucc`: which archive it uses, what it leaves in the libraries, and how it gives up."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import torch_ucc

SCRIPT = Path(__file__).resolve().parents[3] / "ci" / "provision-ucc"
BUNDLED = Path(torch_ucc.__file__).parent / "_ucc" / "lib"
pytestmark = pytest.mark.skipif(not SCRIPT.is_file(), reason="the script is part of the sources only")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("provision_ucc", str(SCRIPT))
    spec = importlib.util.spec_from_loader("provision_ucc", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


DEB822 = """\
# a mirror nearby
Types: deb
URIs: http://mirror.example/debian-security
Suites: stable-security
Components: main

Types: deb-src
URIs: http://mirror.example/sources/debian
Suites: stable

Types: deb
# a comment among the fields
URIs: http://mirror.example/debian/
Suites: stable stable-updates
Components: main contrib
Signed-By: {key}
"""


@pytest.mark.parametrize("key", ["/a/keyring.gpg", "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc"])
def test_the_archive_of_a_stanza(script: ModuleType, tmp_path: Path, key: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822.format(key=key))
    assert script._source(tmp_path) == (
        f"Types: deb\nURIs: http://mirror.example/debian/\nSuites: sid\nComponents: main\nSigned-By: {key}\n"
    )


@pytest.mark.parametrize(
    ("options", "signed"),
    [
        ("", ""),
        ("[arch=amd64 signed-by=/a/keyring.gpg] ", "Signed-By: /a/keyring.gpg\n"),
        ("[arch=amd64] ", ""),
    ],
)
def test_the_archive_of_a_line(script: ModuleType, tmp_path: Path, options: str, signed: str) -> None:
    (tmp_path / "sources.list").write_text(
        f"# deb http://commented.example/debian stable main\n"
        f"deb http://other.example/ubuntu noble main\n"
        f"deb {options}http://mirror.example/debian stable main\n"
    )
    assert script._source(tmp_path) == (
        f"Types: deb\nURIs: http://mirror.example/debian\nSuites: sid\nComponents: main\n{signed}"
    )


def test_no_debian_archive_is_said(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://other.example/ubuntu noble main\n")
    with pytest.raises(script.CannotHelpError, match="not configured with a Debian archive"):
        script._source(tmp_path)


def test_where_there_is_no_apt_it_says_what_to_install(tmp_path: Path) -> None:
    """In a copy of the checkout, so that nothing is up to date there."""
    for folder in ("ci", "python"):
        shutil.copytree(
            SCRIPT.parents[1] / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    (tmp_path / "bin").mkdir()
    for program in ("cksum", "cc"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or program)
    done = subprocess.run(
        [sys.executable, tmp_path / "ci" / "provision-ucc"],
        env={**os.environ, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "There is no apt-get" in done.stderr
    for way in ("dnf install ucc-devel", "conda-forge ucc", "spack install ucc", "HPC-X", "UCC_HOME"):
        assert way in done.stderr
    assert not (tmp_path / ".deps").exists()


def test_the_libraries_ask_for_no_newer_glibc_than_this(script: ModuleType) -> None:
    if not BUNDLED.is_dir():
        pytest.skip("this package was built with a UCC of the machine's and carries none")
    here = script._numbers(os.confstr("CS_GNU_LIBC_VERSION") or "")
    libraries = sorted(BUNDLED.glob("**/*.so*"))
    assert len(libraries) > 5
    for library in libraries:
        for need in script.elf.ElfFile(library).needs():
            assert not need.version.startswith("GLIBC_") or script._numbers(need.version) <= here, (
                library,
                need,
            )


def test_a_version_in_use_is_not_renamed(script: ModuleType, tmp_path: Path) -> None:
    library = Path(shutil.copy(sys.modules["_ctypes"].__file__ or "", tmp_path))
    file = script.elf.ElfFile(library)
    needs = file.needs()
    used = next(need for need in needs if file.symbols_of(need))
    other = next(need for need in needs if need.library == used.library and need != used)
    with pytest.raises(ValueError, match="still in use"):
        file.rename_need(used, other)
