"""What counts as set by the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_ucc.topology.user import settings_here


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no ucx.conf is but a test's own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def written(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "ucx.conf").write_text(text)
    return str(folder)


def test_a_file_of_ucx_counts_and_the_environment_decides(tmp_path: Path) -> None:
    home = written(tmp_path / "home", "UCX_TLS = tcp,self ; not shm\nUCX_NET_DEVICES=eth3\nUCX_WARN=n\n")
    assert settings_here({"HOME": home}) == {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth3"}
    assert settings_here({"HOME": home, "UCX_TLS": "sm"})["UCX_TLS"] == "sm"


def test_the_folder_set_decides_over_home_and_that_of_the_process_over_both(
    tmp_path: Path,
) -> None:
    environment = {
        "HOME": written(tmp_path / "home", "UCX_TLS=1\nUCX_NET_DEVICES=eth1\n"),
        "UCX_CONFIG_DIR": written(tmp_path / "set", "UCX_TLS=2\n"),
    }
    assert settings_here(environment) == {"UCX_TLS": "2", "UCX_NET_DEVICES": "eth1"}
    written(Path(), "UCX_TLS=3\n")
    assert settings_here(environment)["UCX_TLS"] == "3"


@pytest.mark.parametrize("text", ["[NVIDIA Grace]\nUCX_TLS=tcp\n", "no line of a setting\n", "\xff"])
def test_what_is_for_some_processors_or_none_is_left_to_ucx(tmp_path: Path, text: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "ucx.conf").write_bytes(text.encode("latin-1"))
    assert settings_here({"HOME": str(home)}) == {}


def test_so_does_the_file_that_ucc_reads(tmp_path: Path) -> None:
    home, named = tmp_path / "home", tmp_path / "named"
    home.mkdir()
    (home / "ucc.conf").write_text("UCC_TL_UCP_TUNE=allreduce:@1\n[amd]\nUCC_TL_UCP_TUNE=allreduce:@2\n")
    named.write_text("UCC_CLS=hier\n")
    assert settings_here({"HOME": str(home)}) == {"UCC_TL_UCP_TUNE": "allreduce:@1"}
    assert settings_here({"HOME": str(home), "UCC_CONFIG_FILE": str(named)}) == {"UCC_CLS": "hier"}


def test_no_file(tmp_path: Path) -> None:
    assert settings_here({"HOME": str(tmp_path)}, {"UCC_CLS": "basic"}) == {"profile UCC_CLS": "basic"}
