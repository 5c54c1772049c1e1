"""What of a tuning a recorded job needs, and what it would gain."""

from __future__ import annotations

import pytest
from torch_ucc.bench.cases import Case
from torch_ucc.bench.figures import Figure
from torch_ucc.tracing.records import Dump, Record
from torch_ucc.tuning import workload
from torch_ucc.tuning.choices import Family
from torch_ucc.tuning.decisions import Gain

MS = 1_000_000


def record(number: int, op: str, size: int, ms: int) -> Record:
    return Record(
        id=number,
        group=1,
        seq=number,
        op=op,
        message=op in ("send", "recv"),
        dtype="float32",
        reduce_op="",
        input_elements=size // 4,
        output_elements=size // 4,
        bytes=size,
        root=-1,
        peer=-1,
        tag=0,
        route="memory",
        state="completed",
        result="ok",
        issued_ns=number * 100 * MS,
        posted_ns=number * 100 * MS,
        ended_ns=(number * 100 + ms) * MS,
        site=0,
    )


def dump(rank: int, *records: Record) -> Dump:
    return Dump(rank, "trace", 1, "h", "b", 0, 0, 0, {}, {}, list(records))


JOB = workload.of(
    [
        dump(
            0,
            record(1, "all_reduce", 1 << 20, 40),
            record(2, "all_reduce", 1 << 20, 20),
            record(3, "send", 64, 2),
        ),
        dump(
            1,
            record(1, "all_reduce", 1 << 20, 20),
            record(2, "all_reduce", 1 << 20, 20),
            record(3, "recv", 64, 2),
        ),
    ]
)


def gain(op: str, size: int, ratio: float) -> Gain:
    return Gain(Case(op, size), Figure(ratio, ratio, ratio, 5), 0.03)


def test_a_workload_is_the_mean_of_its_ranks() -> None:
    assert JOB.spent == {Case("all_reduce", 1 << 20): 50 * MS, Case("ping_pong", 64): 2 * MS}
    assert JOB.span_ns == 202 * MS


def test_what_called_nothing_is_no_workload() -> None:
    with pytest.raises(ValueError, match="has no operations"):
        workload.of([dump(0)])


def test_only_what_the_job_calls_is_tuned() -> None:
    near, far, other = Case("all_reduce", 2 << 20), Case("all_reduce", 4), Case("broadcast", 1 << 20)
    groups = {"near": (near, far), "far": (far,), "other": (other,)}
    values = {name: {"ucc": {"X": name}} for name in groups}
    family = Family("algorithms", groups, {"one": values, "two": {"far": values["far"]}})
    (found,) = workload.narrowed([family, Family("rest", {"all": (other,)}, {"x": {"all": {}}})], JOB)
    assert found.groups == {"near": (near,)}
    assert found.variants == {"one": {"near": values["near"]}}


def test_the_gain_is_that_of_the_case_next_to_each_operation() -> None:
    gains = [gain("all_reduce", 1 << 20, 2.0), gain("all_reduce", 4, 10.0), gain("broadcast", 64, 10.0)]
    assert JOB.saved_ns(gains) == pytest.approx(25 * MS)
    told = workload.forecast(JOB, gains)
    assert "spends 52.00 ms of 202.00 ms" in told
    assert told.endswith("With the profile, this time would be about 25.00 ms (48%) shorter.")
    assert workload.forecast(JOB, []).endswith("The profile would not change this time.")
    assert "longer" in workload.forecast(JOB, [gain("all_reduce", 1 << 20, 0.5)])
