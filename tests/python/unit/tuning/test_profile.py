"""Profiles: read, refused, written, applied; and as a source of settings."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch_ucc import cli, config
from torch_ucc.cli.topo import machine
from torch_ucc.topology.here import this_host
from torch_ucc.topology.job import copies, uniform
from torch_ucc.tuning.profile import (
    Profile,
    applied,
    as_toml,
    differences,
    parse,
    read,
    refusal,
    topology_of,
    variables,
)

HERE = topology_of(uniform([this_host()], 2))
TUNED = {
    "settings": {"segment_bytes": "2m", "spin": "0us"},
    "ucx": {"RNDV_THRESH": "16384"},
    "ucc": {"TL_UCP_TUNE": "bcast:0-16k:@dbt#reduce:16k-inf:@srg"},
}


def text(values: Any = TUNED, **topology: object) -> str:
    return as_toml(Profile("", {**HERE, **topology}, values), ["Made here."], {})


def file(folder: Path, content: str | None = None) -> str:
    path = folder / "tuned.toml"
    path.write_text(text() if content is None else content)
    return str(path)


def test_what_is_written_is_read_again() -> None:
    notes = {("ucx", "RNDV_THRESH"): ['16384: ping_pong 64 KB 1.30x "here"']}
    written = as_toml(Profile("", HERE, TUNED), ["Made here.", ""], notes)
    assert parse(written) == Profile("", HERE, TUNED)
    assert written.startswith("# Made here.\n#\nformat = 1\n")
    assert '# 16384: ping_pong 64 KB 1.30x "here"\nRNDV_THRESH = "16384"\n' in written


@pytest.mark.parametrize("value", ['"', "\\", 'a\\"b', "#=[]", ["x", "y"], [1, 2], True, 7])
def test_every_value_comes_back(value: object) -> None:
    assert parse(text(cpu=value)).topology["cpu"] == value


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("format =", "not TOML"),
        ("", r"not a profile .* \(format = 1\)"),
        ("format = 2\n", "not a profile"),
        (text() + '[ucxx]\nTLS = "tcp"\n', r"ucxx is not a known section: did you mean ucx\?"),
        (
            text({"ucx": {"RNDV_TRESH": "1k"}}),
            r"RNDV_TRESH is not a known option of \[ucx\]: did you mean RNDV_THRESH\?",
        ),
        (text({"ucc": {"TUNE": "x"}}), r"TUNE is not a known option of \[ucc\]: "),
        (text({"ucx": {"NET_DEVICES": "eth0"}}), r"NET_DEVICES is not a known option of \[ucx\]: "),
        (text(core=3), r"core is not a known part of the topology: did you mean cores\?"),
        ("format = 1\n", r"\[topology\] lacks hosts, ranks_per_host"),
        (text({}) + "[ucx]\nTLS = 1.5\n", r"\[ucx\] TLS = 1.5 is not a text or a number"),
        ("format = 1\nucx = 4\n", "are sections"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: str, why: str) -> None:
    path = file(tmp_path, wrong)
    with pytest.raises(ValueError, match=rf"^TORCH_UCC_PROFILE={path}: .*{why}"):
        read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^TORCH_UCC_PROFILE=.*gone cannot be read: No such file"):
        config.from_environment({"TORCH_UCC_PROFILE": str(tmp_path / "gone")})


def test_it_is_a_source_between_the_environment_and_the_defaults(tmp_path: Path) -> None:
    path = file(tmp_path)
    read = config.from_environment({"TORCH_UCC_PROFILE": path, "TORCH_UCC_SPIN": "7us"})
    assert read.segment_bytes == 2 << 20 and read.sources["segment_bytes"] == f"profile {path}"
    assert read.spin.microseconds == 7 and read.sources["spin"] == "environment variable TORCH_UCC_SPIN"
    assert read.yield_for == config.Config().yield_for and "yield_for" not in read.sources


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"segment_byte": "1m"}, r"segment_byte is not a .* option of .*: did you mean segment_bytes\?"),
        ({"segment_bytes": "big"}, r"\[settings\] segment_bytes='big' is not a size in bytes"),
        ({"profile": "other"}, r"profile is not a known option of \[settings\]"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    path = file(tmp_path, text({"settings": settings}))
    with pytest.raises(ValueError, match=rf"^TORCH_UCC_PROFILE={path}: {why}"):
        config.from_environment({"TORCH_UCC_PROFILE": path})


def test_what_is_set_for_a_library_decides_over_it(tmp_path: Path) -> None:
    profile = Profile("", HERE, {"ucx": {"TLS": "^cma", "RNDV_THRESH": "4k"}, "ucc": {"TL_UCP_TUNE": "x"}})
    told = variables(profile, {})
    assert told == {"UCC_UCX_TLS": "^cma", "UCC_UCX_RNDV_THRESH": "4k", "UCC_TL_UCP_TUNE": "x"}
    for ours, theirs in (
        ("UCC_UCX_TLS", "UCX_TLS"),
        ("UCC_UCX_TLS", "UCC_UCX_TLS"),
        ("UCC_UCX_RNDV_THRESH", "UCX_RNDV_THRESH"),
        ("UCC_TL_UCP_TUNE", "UCC_TL_UCP_TUNE"),
        ("UCC_TL_UCP_TUNE", "UCC_TUNE"),
    ):
        assert told.keys() - variables(profile, {theirs: "tcp"}).keys() == {ours}
        name = "ucx.conf" if "UCX" in theirs else "ucc.conf"
        home = tmp_path / theirs
        home.mkdir()
        (home / name).write_text(f"{theirs}=tcp\n")
        assert told.keys() - variables(profile, {"HOME": str(home)}).keys() == {ours}


def test_ranks_must_agree_on_what_it_says_to_ucc(tmp_path: Path) -> None:
    environment = {"TORCH_UCC_PROFILE": file(tmp_path)}
    read = config.from_environment(environment)
    agreed = config.native(read, SimpleNamespace(), environment).agreed
    assert ("segment_bytes", "2097152") in agreed
    assert ("UCC_TL_UCP_TUNE", TUNED["ucc"]["TL_UCP_TUNE"]) in agreed
    assert {name for name, _ in agreed if name.startswith("UCC_UCX_")} == {
        "UCC_UCX_" + name for name in TUNED["ucx"]
    }


def test_it_is_applied_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCC_UCX_TLS", raising=False)
    before = dict(os.environ)
    with pytest.raises(KeyError), applied({"UCC_UCX_TLS": "^cma"}):
        assert os.environ["UCC_UCX_TLS"] == "^cma"
        raise KeyError
    assert dict(os.environ) == before


def test_it_is_listed(tmp_path: Path) -> None:
    path = file(tmp_path)
    rows = {row.variable: row for row in config.listing({"TORCH_UCC_PROFILE": path, "UCX_RNDV_THRESH": "1k"})}
    assert rows["TORCH_UCC_SEGMENT_BYTES"].value == "2m"
    assert rows["TORCH_UCC_SEGMENT_BYTES"].source == f"profile {path}"
    assert rows["UCC_TL_UCP_TUNE"].source == f"profile {path}"
    assert rows["UCX_RNDV_THRESH"].source == "environment" and "UCC_UCX_RNDV_THRESH" not in rows


def test_a_topology_says_what_decides() -> None:
    host = this_host()
    one, two = topology_of(uniform([host], 2)), topology_of(uniform(copies(host, 2), 1))
    assert (one["hosts"], one["ranks_per_host"], one["network"]) == (1, 2, "none")
    assert (two["hosts"], two["ranks_per_host"], two["network"]) == (2, 1, "TCP")
    assert differences(one, one) == []
    assert differences(one, two) == [
        "hosts: 1 in the profile, 2 in this job",
        "ranks per host: 2 in the profile, 1 in this job",
        "network between hosts: none in the profile, TCP in this job",
    ]


def test_a_profile_of_another_topology_is_refused_with_what_differs() -> None:
    job = uniform([this_host()], 2)
    assert refusal(Profile("a", topology_of(job)), job) == ""
    why = refusal(Profile("a", {**topology_of(job), "ucx": "0.9"}), job)
    assert why.startswith("TORCH_UCC_PROFILE=a was made for another topology (UCX: 0.9 in the profile, ")
    assert "torch_ucc tune" in why


def test_a_plan_shows_its_part_or_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = topology_of(uniform([machine(None)], 2))
    path = file(tmp_path, as_toml(Profile("", here, {**TUNED, "ucx": {"TLS": "^cma"}}), [], {}))
    monkeypatch.setenv("TORCH_UCC_PROFILE", path)
    assert cli.main(["plan", "--ranks-per-host", "2"]) == 0
    told = capsys.readouterr().out
    assert "Set by the profile: UCC_UCX_TLS=^cma." in told
    own = told[told.index(f"Set by profile {path}:") :].splitlines()[1:]
    assert {"  TORCH_UCC_SPIN=0us", "  UCC_UCX_TLS=^cma"} <= set(own) and len(own) == 4
    assert cli.main(["plan", "--ranks-per-host", "3"]) == 1
    told = capsys.readouterr().out
    assert "This cannot work:" in told
    assert "another topology (ranks per host: 2 in the profile, 3 in this job)" in told
