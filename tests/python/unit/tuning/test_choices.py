"""What there is to choose: each candidate is a profile that can be read, and jobs get those that fit."""

from __future__ import annotations

import pytest
from torch_ucc import config
from torch_ucc.bench.cases import OPS
from torch_ucc.cli.topo import machine
from torch_ucc.topology.job import Job, copies, uniform
from torch_ucc.tuning.choices import families, merged, ranges
from torch_ucc.tuning.profile import Profile, as_toml, parse, topology_of


def jobs() -> dict[str, Job]:
    host = machine(None)  # with its libraries: without UCX there is no cma
    return {
        "2 ranks": uniform([host], 2),
        "many ranks": uniform([host], 64),
        "2 hosts": uniform(copies(host, 2), 1),
        "2 hosts of 4": uniform(copies(host, 2), 4),
    }


@pytest.mark.parametrize("name", jobs())
def test_every_candidate_can_be_read(name: str, tmp_path: object) -> None:
    job = jobs()[name]
    for family in families(job):
        assert family.variants
        for variant, groups in family.variants.items():
            values = family.values(variant)
            profile = Profile("", topology_of(job), values)
            assert parse(as_toml(profile, [], {})) == profile
            config._of_profile(profile)
            assert groups.keys() <= family.groups.keys()
            assert {case.op for case in family.cases(variant)} <= set(OPS)
            assert set(family.cases(variant)) <= set(family.cases())


def test_a_job_gets_what_fits_it() -> None:
    names = {name: [family.name for family in families(job)] for name, job in jobs().items()}
    assert "radices of trees" not in names["2 ranks"] and "radices of trees" in names["many ranks"]
    assert "one UCC team of all hosts" not in names["2 hosts"] + names["many ranks"]
    assert "one UCC team of all hosts" in names["2 hosts of 4"]
    assert "transports on a host" not in names["2 hosts"]
    assert names["2 ranks"][0] == names["many ranks"][-2] == "pieces of a large all_reduce"
    waiting = next(family for family in families(jobs()["many ranks"]) if family.name == "waiting")
    assert not any(variant.startswith("spinning") for variant in waiting.variants)


def test_sizes_stand_for_ranges_without_gaps() -> None:
    assert ranges([64, 4, 1024]) == {4: (0, 16), 64: (16, 256), 1024: (256, 4096)}


def test_an_algorithm_is_for_an_operation_at_a_size() -> None:
    family = next(each for each in families(jobs()["2 ranks"]) if each.name.startswith("algorithms"))
    second = family.variants["algorithm 2"]
    assert second["broadcast 65536"] == {"ucc": {"TL_UCP_TUNE": "bcast:16k-256k:@sag_knomial"}}
    assert second["all_gather_into_tensor 65536"] == {"ucc": {"TL_UCP_TUNE": "allgather:32k-512k:@ring"}}
    assert second["all_reduce 4"] == {"ucc": {"TL_UCP_TUNE": "allreduce:0-128:@sra_knomial"}}
    assert second["reduce 1048576"] == {"ucc": {"TL_UCP_TUNE": "reduce:256k-4096k:@dbt"}}


def test_rules_for_algorithms_add_up_and_other_values_replace() -> None:
    parts = [
        {"ucc": {"TL_UCP_TUNE": "a"}, "ucx": {"TLS": "tcp"}},
        {"ucc": {"TL_UCP_TUNE": "b"}},
        {"ucx": {"TLS": "sm"}},
    ]
    assert merged(*parts) == {"ucc": {"TL_UCP_TUNE": "a#b"}, "ucx": {"TLS": "sm"}}
    assert parts[0] == {"ucc": {"TL_UCP_TUNE": "a"}, "ucx": {"TLS": "tcp"}}


@pytest.mark.parametrize(
    ("variable", "family"),
    [
        ("TORCH_UCC_SEGMENT_BYTES", "pieces of a large all_reduce"),
        ("UCX_TLS", "transports on a host"),
        ("UCC_UCX_RNDV_THRESH", "size from which a receiver fetches a message"),
        ("UCC_TL_UCP_TUNE", "algorithms by operation and size"),
        ("UCC_TUNE", "algorithms by operation and size"),
    ],
)
def test_what_the_user_set_is_not_open(variable: str, family: str) -> None:
    found = {each.name: each for each in families(jobs()["2 ranks"])}
    assert all(each.is_open({"UCX_LOG_LEVEL": "info"}) for each in found.values())
    closed = [name for name, each in found.items() if not each.is_open({variable: "x"})]
    assert closed == [family]
