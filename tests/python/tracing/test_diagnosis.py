"""`torch-ucc trace diagnose`: each planted fault is named, and nothing is said of a healthy run.

Most dumps are built by hand, from what each rank of a job has called; `test_diagnosis_of_runs.py` plants
faults into real ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from torch_ucc.tracing.diagnosis import diagnose
from torch_ucc.tracing.records import Dump, Group, Record

WORLD = "world"
PROGRAM = "/home/me/train.py"
SECOND = 1_000_000_000


@dataclass
class Rank:
    """Writes down what a rank calls. One call takes a microsecond, in the same step on all ranks."""

    rank: int
    groups: dict[str, tuple[int, ...]]
    now: int = 1000
    records: list[Record] = field(default_factory=list)
    steps: list[int] = field(default_factory=lambda: [1000])
    failure: str = ""
    reason: str = "timeout"

    def call(
        self,
        op: str,
        *,
        group: str = WORLD,
        dtype: str = "float32",
        elements: int = 4,
        output: int | None = None,
        reduce_op: str = "",
        root: int = -1,
        state: str = "completed",
        result: str = "ok",
        peer: int = -1,
        tag: int = 0,
        after: int = 1000,
        takes: int = 1000,
        awaited_after: int | None = None,
        backward: bool = False,
    ) -> Rank:
        message = op in ("send", "recv", "recv_any_source")
        number = list(self.groups).index(group) + 1
        seq = 1 + sum(each.group == number and each.message == message for each in self.records)
        self.now += after
        issued, ended = self.now, self.now + takes if state in ("completed", "failed") else 0
        self.now = ended or issued
        self.records.append(
            Record(
                id=len(self.records) + 1,
                group=number,
                seq=seq,
                op=op,
                message=message,
                dtype=dtype,
                reduce_op=reduce_op or ("SUM" if "reduce" in op else ""),
                input_elements=elements,
                output_elements=elements if output is None else output,
                bytes=4 * elements,
                root=root,
                peer=peer,
                tag=tag,
                route="messages" if message else "ucc",
                state=state,
                result=result,
                issued_ns=issued,
                posted_ns=issued,
                ended_ns=ended,
                site=2 if backward else 1,
                awaited_ns=0 if awaited_after is None else issued + awaited_after,
            )
        )
        return self

    def step(self) -> Rank:
        """An iteration ends."""
        self.steps.append(self.now)
        return self

    def stuck(self, op: str, **how: object) -> Rank:
        return self.call(op, state="posted", **how)  # type: ignore[arg-type]

    def times_out(self, op: str, **how: object) -> Rank:
        return self.call(op, state="failed", result="timeout", takes=2 * SECOND, **how)  # type: ignore[arg-type]

    def dump(self) -> Dump:
        return Dump(
            rank=self.rank,
            reason=self.reason,
            pid=100 + self.rank,
            host="host",
            boot_id="boot",
            steady_ns=self.now + SECOND,
            wall_ns=self.now + SECOND,
            last_id=len(self.records),
            groups={
                number: Group(number, name, ranks.index(self.rank), ranks, failure=self.failure)
                for number, (name, ranks) in enumerate(self.groups.items(), 1)
            },
            sites={
                1: f"/site/torch/distributed/distributed_c10d.py:9 f\n{PROGRAM}:{40 + self.rank} step",
                2: f"/site/torch/autograd/graph.py:5 _engine_run_backward\n{PROGRAM}:3 step",
            },
            records=self.records,
            steps=self.steps,
        )


def job(size: int, *more: str) -> list[Rank]:
    """Ranks that have done three steps well; `more` names further groups of them all."""
    everybody = tuple(range(size))
    ranks = [Rank(rank, {WORLD: everybody, **dict.fromkeys(more, everybody)}) for rank in range(size)]
    for rank in ranks:
        for _ in range(3):
            rank.call("all_reduce")
    return ranks


Fault = Callable[[], list[Rank]]
FAULTS: dict[str, tuple[Fault, list[str]]] = {}


def fault(*says: str) -> Callable[[Fault], Fault]:
    """`says`: what its diagnosis must contain."""

    def register(plant: Fault) -> Fault:
        FAULTS[plant.__name__] = (plant, list(says))
        return plant

    return register


def all_but(ranks: list[Rank], *others: int) -> list[Rank]:
    return [rank for rank in ranks if rank.rank not in others]


@fault(
    "different operations at seq 4: rank 3 called seq 4 all_gather(float32[4])",
    f"(called from {PROGRAM}:43 step)",
    "ranks 0, 1, 2 called seq 4 all_reduce(float32[4] SUM)",
)
def wrong_op() -> list[Rank]:
    ranks = job(4)
    for rank in all_but(ranks, 3):
        rank.times_out("all_reduce")
    ranks[3].times_out("all_gather")
    return ranks


@fault("different sizes at seq 4: rank 1 called seq 4 all_reduce(float32[5] SUM)")
def wrong_size() -> list[Rank]:
    ranks = job(3)
    for rank in ranks:
        rank.stuck("all_reduce", elements=5 if rank.rank == 1 else 4)
    return ranks


@fault("different dtypes at seq 4: rank 0 called seq 4 broadcast(float64[4], root 0)")
def wrong_dtype_that_went_through() -> list[Rank]:
    ranks = job(3)
    for rank in ranks:
        rank.call("broadcast", root=0, dtype="float64" if rank.rank == 0 else "int64")
    return ranks


@fault("different roots at seq 4", "rank 2 called seq 4 broadcast(float32[4], root 1)")
def wrong_root() -> list[Rank]:
    ranks = job(4)
    for rank in ranks:
        rank.stuck("broadcast", root=1 if rank.rank == 2 else 0)
    return ranks


@fault("different reduce ops at seq 4", "all_reduce(float32[4] MAX)")
def wrong_reduce_op() -> list[Rank]:
    ranks = job(2)
    for rank in ranks:
        rank.call("all_reduce", reduce_op="MAX" if rank.rank else "SUM")
    return ranks


@fault(
    "ranks 0, 1, 3 called seq 4 all_reduce",
    "Rank 2 did not call this operation: the last operation of rank 2, seq 3 all_reduce",
)
def missing_rank() -> list[Rank]:
    ranks = job(4)
    for rank in all_but(ranks, 2):
        rank.times_out("all_reduce", after=SECOND)
    return ranks


@fault("Rank 1 did not call this operation: rank 1 has called no operation at all")
def rank_that_never_called() -> list[Rank]:
    ranks = [Rank(rank, {WORLD: (0, 1)}) for rank in range(2)]
    ranks[0].times_out("barrier", elements=0, dtype="")
    return ranks


@fault(
    "ranks 0, 1 called seq 4 all_reduce",
    "Rank 2 wrote no dump",
    "Rank 0 reported this error: rank 2 (pid 9) is gone",
)
def dead_rank() -> list[Rank]:
    ranks = job(3)
    for rank in ranks[:2]:
        rank.call("all_reduce", state="failed", result="peer_gone")
        rank.failure = "rank 2 (pid 9) is gone"
    return ranks[:2]


@fault("Ranks 2, 3 wrote no dumps: they died")
def dead_host() -> list[Rank]:
    ranks = job(4)[:2]
    for rank in ranks:
        rank.stuck("all_reduce")
    return ranks


@fault(
    "wait for each other in a circle: rank 0 is in seq 1 all_reduce",
    "of group 'tensor'",
    "of group 'pipeline'",
)
def swapped_order_of_two_groups() -> list[Rank]:
    ranks = job(2, "tensor", "pipeline")
    ranks[0].stuck("all_reduce", group="tensor")
    ranks[1].stuck("all_reduce", group="pipeline")
    return ranks


@fault(
    "in a circle: rank 0 is in seq 1 all_reduce",
    "of group 'a' and waits for rank 1; rank 1 is in",
    "of group 'b' and waits for rank 2; rank 2 is in",
    "of group 'c' and waits for rank 0.",
)
def circle_of_three_groups() -> list[Rank]:
    ranks = job(3)
    for name, first, second in (("a", 0, 1), ("b", 1, 2), ("c", 2, 0)):
        for rank in (first, second):
            ranks[rank].groups[name] = tuple(sorted((first, second)))
    for rank, group in zip(ranks, "abc", strict=True):
        rank.stuck("all_reduce", group=group)
    return ranks


@fault("different operations at seq 4", "The ranks make this call and the next one in different orders.")
def swapped_order_of_two_calls() -> list[Rank]:
    ranks = job(2)
    ranks[0].stuck("broadcast", root=0).stuck("all_reduce")
    ranks[1].stuck("all_reduce").stuck("broadcast", root=0)
    return ranks


@fault(
    "Rank 1 was too late for seq 4 all_reduce(float32[4] SUM)",
    "5.00 s after rank 0, when the timeout of rank 0 had already passed",
)
def straggler() -> list[Rank]:
    ranks = job(2)
    ranks[0].times_out("all_reduce", after=1000)
    ranks[1].times_out("all_reduce", after=5 * SECOND + 1000)
    return ranks


@fault(
    "Rank 3 did not call this operation: rank 3 is in seq 1 barrier() (called",
    "of group 'part', which has not ended",
)
def one_is_stuck_in_another_group() -> list[Rank]:
    ranks = job(4)
    for rank in ranks[2:]:
        rank.groups["part"] = (2, 3)
    ranks[2].stuck("barrier", group="part", dtype="", elements=0)
    for rank in all_but(ranks, 3):
        rank.stuck("all_reduce")
    ranks[3].stuck("barrier", group="part", dtype="", elements=0)
    return ranks


@fault("Rank 1 did not call this operation", "rank 0 called seq 4 all_reduce")
def one_step_too_many() -> list[Rank]:
    ranks = job(2)
    ranks[0].stuck("all_reduce")
    return ranks


@fault(
    "Rank 1 waits in seq 1 recv(float32[4], peer 0, tag 7)",
    "for rank 0, but rank 0 has not called send for rank 1",
)
def receive_that_nobody_sends() -> list[Rank]:
    ranks = job(2)
    ranks[1].stuck("recv", peer=0, tag=7)
    return ranks


@fault("for rank 0, but rank 0 used another tag: seq 1 send(float32[4], peer 1, tag 8)")
def message_with_another_tag() -> list[Rank]:
    ranks = job(2)
    ranks[0].call("send", peer=1, tag=8)
    ranks[1].stuck("recv", peer=0, tag=7)
    return ranks


@fault("Rank 0 waits in seq 1 send(float32[400], peer 1, tag 0)", "rank 1 has not called recv for rank 0")
def send_that_nobody_receives() -> list[Rank]:
    ranks = job(2)
    ranks[0].stuck("send", peer=1, elements=400)
    return ranks


@fault(
    "Rank 0 waits in seq 1 recv(float32[4], peer 1, tag 0)",
    "for rank 1, but rank 1 has not called send for rank 0",
    "and is itself in seq 1 recv(float32[4], peer 0, tag 0)",
)
def receives_that_cross() -> list[Rank]:
    ranks = job(2)
    for rank in ranks:
        rank.stuck("recv", peer=1 - rank.rank)
    return ranks


@fault("no rank sent a message with this tag to rank 0")
def receive_from_anybody_that_nobody_sends() -> list[Rank]:
    ranks = job(2)
    ranks[0].times_out("recv_any_source", tag=3)
    return ranks


@fault("for rank 1, which wrote no dump")
def message_from_a_dead_rank() -> list[Rank]:
    ranks = job(2)[:1]
    ranks[0].stuck("recv", peer=1)
    return ranks


@fault("All ranks that wrote a dump called seq 4 all_reduce", "network between these ranks is stuck or slow")
def stuck_network() -> list[Rank]:
    ranks = job(3)
    for rank in ranks:
        rank.times_out("all_reduce")
    return ranks


@fault("Rank 0 failed in seq 4 all_reduce", "transport", "reported this error: a cable was cut")
def error_of_the_transport() -> list[Rank]:
    ranks = job(2)
    for rank in ranks:
        rank.call("all_reduce", state="failed", result="transport")
        rank.failure = "a cable was cut"
    return ranks


@fault("All ranks made the same calls", "had not ended on rank 0")
def dumped_while_it_goes_on() -> list[Rank]:
    ranks = job(2)
    for rank in ranks:
        rank.stuck("all_reduce")
    return ranks


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(name: str) -> None:
    plant, says = FAULTS[name]
    told = diagnose([rank.dump() for rank in plant()])
    for part in says:
        assert part in told, told
    assert "\n" not in told


def test_there_are_twenty_faults() -> None:
    assert len(FAULTS) >= 20


def test_nothing_is_said_of_a_healthy_run() -> None:
    ranks = job(4, "part")
    for rank in ranks:
        rank.call("broadcast", root=2).call("all_gather", elements=rank.rank + 1)
        rank.call("send" if rank.rank < 2 else "recv", peer=(rank.rank + 2) % 4)
        rank.call("all_reduce", group="part").call("barrier", dtype="", elements=0)
    assert diagnose([rank.dump() for rank in ranks]) == ""


@pytest.mark.parametrize("who", [[0], [0, 1]])
@pytest.mark.parametrize(("seconds", "is_told"), [(0.2, False), (2.0, True)])
def test_of_a_recording_that_ended_before_its_job_what_took_long_is_told(
    who: list[int], seconds: float, is_told: bool
) -> None:
    ranks = job(2)
    for rank in who:
        ranks[rank].stuck("all_reduce")
    end = ranks[0].now + int(seconds * SECOND)
    dumps = [dataclasses.replace(rank.dump(), reason="cut", steady_ns=end) for rank in ranks]
    told = diagnose(dumps)
    assert ("all_reduce" in told) == is_told, told


def test_nothing_is_said_where_rings_begin_in_different_places() -> None:
    ranks = job(2)
    dumps = [rank.dump() for rank in ranks]
    dumps[1] = dataclasses.replace(dumps[1], records=dumps[1].records[1:])
    assert diagnose(dumps) == ""
    assert diagnose([]) == ""
