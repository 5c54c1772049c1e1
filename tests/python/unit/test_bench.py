"""The bench: its arithmetic on made-up samples, its turns and failures, and one real run."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_ucc.bench import busy, driver, plot, report, worker
from torch_ucc.bench.__main__ import exit_status, main, parse
from torch_ucc.bench.cases import (
    BUSY_CASES,
    COLLECTIVES,
    HALVES,
    OPS,
    SIZES,
    Case,
    format_case,
    format_size,
    make_cases,
    parse_size,
)
from torch_ucc.bench.figures import Sample, Samples, figure
from torch_ucc.bench.libraries.library import check
from torch_ucc.bench.libraries.over_oneccl import OneCclLibrary
from torch_ucc.bench.peers import PEERS, Peer, commands, made_by, tuned
from torch_ucc.bench.places import Between, Place, place
from torch_ucc.bench.recording import PAIRS
from torch_ucc.bench.targets import (
    BUSY_TARGETS,
    HOST_TARGETS,
    OCCASION_TARGETS,
    PLAIN_TARGETS,
    DtypeTarget,
    EveryCellTarget,
    EveryOverheadTarget,
    OverheadTarget,
    Unit,
    Verdict,
    judge,
    judge_occasions,
    judge_tuned_training,
    never_slower_tuned,
)

REPOSITORY = Path(__file__).resolve().parents[3]
ONE_RANK_OF_MPI = """
class Comm:
    rank, size = 0, 1
    def Barrier(self): pass
    def allgather(self, value): return [value]
COMM_WORLD = Comm()
"""
RIVAL = """
import torch.distributed as dist
def mine(rank, size):
    def all_reduce(tensor):
        dist.all_reduce(tensor)
    return all_reduce
"""
SMALL, LARGE = Case("all_reduce", 4), Case("all_reduce", 64 << 20)


def samples(ranks: int, case: Case, **seconds_by_peer: list[float]) -> list[Sample]:
    return [
        Sample(peer, ranks, case, repetition, value)
        for peer, values in seconds_by_peer.items()
        for repetition, value in enumerate(values)
    ]


@pytest.fixture
def cores_given_back() -> Iterator[None]:
    """The bench keeps its process to two cores; other tests need not."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture
def loops_of_c(monkeypatch: pytest.MonkeyPatch, made_peer: Callable[[str], Path]) -> None:
    """For the peers `alone` and `floor`."""
    if not (REPOSITORY / "ci").is_dir():
        pytest.skip("ci/ has the loops of C")
    for name in ("alone", "floor"):
        monkeypatch.setenv("TORCH_UCC_BENCH_PEERS", str(made_peer(name).parent))


class TestCases:
    @pytest.mark.parametrize(
        ("text", "nbytes"), [("4", 4), ("64K", 65536), ("1M", 1 << 20), ("64 MB", 64 << 20)]
    )
    def test_size(self, text: str, nbytes: int) -> None:
        assert parse_size(text.replace(" ", "")) == nbytes
        assert parse_size(format_size(nbytes).replace(" ", "")) == nbytes

    @pytest.mark.parametrize("text", ["", "0", "3", "-4", "4G", "1.5K"])
    def test_not_a_size(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a"):
            parse_size(text)

    def test_barrier_has_one_case_and_all_reduce_its_usual_sizes(self) -> None:
        cases = make_cases(["all_reduce", "barrier"], None)
        assert cases == [*(Case("all_reduce", size) for size in SIZES), Case("barrier", 0)]

    def test_unknown_op(self) -> None:
        with pytest.raises(ValueError, match="unknown op 'reduction'"):
            make_cases(["reduction"], None)

    def test_each_dtype_has_every_size_and_barrier_none(self) -> None:
        cases = make_cases(["all_reduce", "barrier"], [4, 1024], ["float32", "bfloat16"])
        assert [str(case) for case in cases] == [
            "all_reduce:4:float32",
            "all_reduce:1024:float32",
            "all_reduce:4:bfloat16",
            "all_reduce:1024:bfloat16",
            "barrier:0:float32",
        ]
        assert [format_case(case) for case in cases[1:4:2]] == ["all_reduce 1 KB", "all_reduce 1 KB bfloat16"]

    def test_unknown_dtype(self) -> None:
        with pytest.raises(ValueError, match="unknown dtype 'float12'"):
            make_cases(["all_reduce"], None, ["float12"])

    def test_a_size_that_its_dtype_does_not_fit_is_left_out(self) -> None:
        args = parse(["--ops", "all_reduce", "--sizes", "4,1K", "--dtypes", "bfloat16,int64"])
        assert [str(case) for case in args.cases] == [
            "all_reduce:4:bfloat16",
            "all_reduce:1024:bfloat16",
            "all_reduce:1024:int64",
        ]
        assert args.left_out == ["all_reduce 4 B int64: one number takes 8 B"]

    def test_a_plain_run_beside_busy_processes_has_its_own_cases(self) -> None:
        args = parse(["--busy", "2"])
        assert [(case.op, case.nbytes) for case in args.cases] == list(BUSY_CASES) and args.ranks == [2]
        assert parse(["--busy", "2", "--ops", "barrier"]).cases == [Case("barrier", 0)]

    def test_a_report_has_the_dtypes_of_its_targets(self) -> None:
        cases = parse(["--report"]).cases
        assert {case.dtype for case in cases if case.op == "all_reduce"} == {"float32", *HALVES}
        assert {case.dtype for case in cases if case.op != "all_reduce"} == {"float32"}


class TestFigures:
    def test_few_samples_are_as_sure_as_their_extremes(self) -> None:
        value = figure([3.0, 1.0, 2.0, 9.0, 4.0])
        assert (value.median, value.low, value.high) == (3.0, 1.0, 9.0)

    def test_many_samples_drop_their_tails(self) -> None:
        value = figure([float(number) for number in range(1, 31)])
        assert (value.median, value.low, value.high) == (15.5, 10.0, 21.0)

    def test_ratio_pairs_neighbours_in_time(self) -> None:
        """A machine three times slower in one turn leaves the ratio alone."""
        both = Samples(samples(2, SMALL, gloo=[20.0, 60.0, 20.0], ucc=[1.0, 3.0, 1.0]))
        ratio = both.ratio("gloo", "ucc", 2, SMALL)
        assert ratio is not None
        assert (ratio.low, ratio.median, ratio.high) == (20.0, 20.0, 20.0)

    def test_ratio_leaves_out_turns_that_one_peer_lacks(self) -> None:
        some = [*samples(2, SMALL, gloo=[10.0, 50.0]), Sample("ucc", 2, SMALL, 1, 5.0)]
        ratio = Samples(some).ratio("gloo", "ucc", 2, SMALL)
        assert ratio is not None
        assert ratio.median == 10.0
        assert Samples(some).ratio("fake", "ucc", 2, SMALL) is None


class TestTargets:
    @pytest.mark.parametrize(
        ("values", "at_most", "verdict"),
        [
            ([1.0, 1.5, 1.9], True, Verdict.MET),
            ([2.1, 2.5, 3.0], True, Verdict.MISSED),
            ([1.9, 2.1, 2.2], True, Verdict.NOISY),
            ([2.1, 2.5, 3.0], False, Verdict.MET),
            ([1.0, 1.5, 1.9], False, Verdict.MISSED),
            ([1.9, 2.1, 2.2], False, Verdict.NOISY),
        ],
    )
    def test_judge(self, values: list[float], at_most: bool, verdict: Verdict) -> None:
        assert judge(figure(values), 2.0, at_most=at_most) is verdict

    def test_each_ratio_is_judged(self) -> None:
        run = Samples(
            [
                *samples(2, SMALL, ucc=[4.0, 4.0], fake=[2.5, 2.5], gloo=[40.0, 40.0]),
                *samples(
                    2, LARGE, ucc=[10.0, 10.0], gloo=[30.0, 30.0], openmpi=[20.0, 20.0], mpich=[9.0, 11.0]
                ),
            ]
        )
        verdicts = [target.judge(run).verdict for target in PLAIN_TARGETS]
        assert verdicts == [Verdict.MET, Verdict.MISSED, Verdict.MET, Verdict.NOISY, Verdict.ABSENT]

    def test_the_better_mpi_takes_both(self) -> None:
        run = Samples(samples(2, LARGE, ucc=[1.0], openmpi=[2.0]))
        assert PLAIN_TARGETS[3].judge(run).verdict is Verdict.ABSENT

    def test_occasions(self) -> None:
        occasions = {
            "ucc": {"idle": [0.001, 0.002], "late": [0.9, 0.95], "delay": [0.0004] * 15 + [0.004] * 15},
            "gloo": {"idle": [0.002], "late": [0.002], "delay": [0.0007]},
        }
        judged = judge_occasions(occasions)
        assert [item.verdict for item in judged] == [Verdict.MET, Verdict.MISSED, Verdict.NOISY]
        assert [item.beside.median for item in judged if item.beside] == [0.002, 0.002, 0.0007]
        assert Unit.CORE.show(0.005) in report.targets_table(judged)

    def test_who_lacks_a_figure_of_an_occasion_keeps_its_column(self) -> None:
        shown = report.occasions_table(
            {"ucc": {"group": [0.001]}, "alone": {"start": [0.1]}, "gloo": {"start": [0.2]}}
        )
        cells = [re.split("  +", line) for line in shown.splitlines()]
        assert cells[2][1:] == ["-", "100.000 ms ±0%", "200.000 ms ±0%"]
        assert cells[3][1:] == ["1.000 ms ±0%", "-", "-"]

    def test_what_is_set_beside_gloo(self) -> None:
        judged = judge_occasions(
            {
                "ucc": {"communication": [1.0, 2.0], "start": [0.5, 0.2]},
                "gloo": {"communication": [3.0, 6.0], "start": [0.1, 0.1]},
            }
        )
        assert [item.verdict for item in judged] == [Verdict.MET, Verdict.NOISY]
        assert judged[0].measured is not None and judged[0].measured.median == 3.0
        assert judged[1].measured is not None and judged[1].measured.low == pytest.approx(0.1)

    @pytest.mark.parametrize(("alone", "verdict"), [(0.3, Verdict.BELOW_FLOOR), (0.2, Verdict.MISSED)])
    def test_a_start_that_the_libraries_alone_miss_too(self, alone: float, verdict: Verdict) -> None:
        times = {"ucc": 0.5, "gloo": 0.1, "alone": alone}
        (judged,) = judge_occasions({peer: {"start": [each] * 3} for peer, each in times.items()})
        assert judged.verdict is verdict
        assert judged.floor is not None and judged.floor.median == pytest.approx(alone - 0.1)

    def test_all_that_is_timed_beside_neighbours_has_a_target(self) -> None:
        cases = [Case(op, nbytes) for op, nbytes in BUSY_CASES]
        run = Samples(
            [sample for case in cases for sample in samples(2, case, ucc=[2.0] * 3, gloo=[1.0] * 3)]
        )
        judged = [target.judge(run) for target in BUSY_TARGETS]
        assert [item.name for item in judged] == [f"{format_case(case)}, 2 ranks" for case in cases]
        assert {item.verdict for item in judged} == {Verdict.MISSED}

    def test_a_neighbour_computes_until_it_is_ended(self) -> None:
        with busy.neighbour() as process:
            cpu = Path(f"/proc/{process.pid}/stat")
            while int(cpu.read_text().rsplit(")", 1)[1].split()[11]) < 5:  # ticks of 10 ms
                time.sleep(0.01)
        assert process.returncode == -signal.SIGKILL

    def test_a_place_has_as_many_neighbours_as_it_says(self) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        before = set(children.read_text().split())
        with place(1, busy=2) as here:
            assert here.busy == 2 and len(set(children.read_text().split()) - before) == 2
        assert set(children.read_text().split()) <= before

    def test_every_cell_counts_by_its_worst(self) -> None:
        run = Samples(
            [
                *samples(2, SMALL, ucc=[1.0, 1.0], gloo=[30.0, 30.0]),
                *samples(2, LARGE, ucc=[1.0, 1.0], gloo=[0.9, 0.9]),
            ]
        )
        worst = EveryCellTarget(2, ("gloo",), 1.0).judge(run)
        assert (worst.verdict, worst.name) == (Verdict.MISSED, "all_reduce 64 MB, 2 ranks")
        assert EveryCellTarget(2, ("gloo",), 20.0, largest=1024).judge(run).verdict is Verdict.MET
        assert EveryCellTarget(2, ("gloo",), 20.0, share=0.5).judge(run).verdict is Verdict.MET
        assert EveryCellTarget(4, ("gloo",), 1.0).judge(run).verdict is Verdict.ABSENT

    def test_the_severest_verdict_of_any_cell_counts(self) -> None:
        """Also where another cell's median is lower."""
        wanted = EveryCellTarget(2, ("gloo",), 1.0)
        sure = samples(2, SMALL, ucc=[1.0, 1.0], gloo=[1.1, 1.1])
        unsure = samples(2, LARGE, ucc=[1.0, 1.0], gloo=[0.8, 1.7])
        missed = samples(2, Case("broadcast", 4), ucc=[1.0, 1.0], gloo=[0.995, 0.995])
        lower = samples(2, Case("reduce", 4), ucc=[1.0, 1.0], gloo=[0.7, 1.2])
        found = [wanted.judge(Samples(run)) for run in (sure, sure + unsure, unsure + missed + lower)]
        assert [each.verdict for each in found] == [Verdict.MET, Verdict.NOISY, Verdict.MISSED]
        assert [each.name for each in found[1:]] == ["all_reduce 64 MB, 2 ranks", "broadcast 4 B, 2 ranks"]

    @pytest.mark.parametrize(("slow", "verdict"), [(3, Verdict.MET), (4, Verdict.MISSED)])
    def test_a_share_of_the_cells_is_that_share_at_least(self, slow: int, verdict: Verdict) -> None:
        run = []
        for number in range(76):
            gloo = [1.0, 1.0] if number < slow else [2.0, 2.0]
            run += samples(2, Case("all_reduce", 4 * number + 4), ucc=[1.0, 1.0], gloo=gloo)
        judged = EveryCellTarget(2, ("gloo",), 1.5, share=0.95).judge(Samples(run))
        assert judged.verdict is verdict and judged.wanted.endswith("in 73 of 76 cells")

    def test_the_better_of_several_takes_all_of_them(self) -> None:
        run = samples(2, SMALL, ucc=[1.0, 1.0], gloo=[9.0, 9.0])
        wanted = EveryCellTarget(2, ("gloo", "openmpi"), 1.0)
        assert wanted.judge(Samples(run)).verdict is Verdict.ABSENT
        run += samples(2, Case("broadcast", 4), ucc=[1.0, 1.0], openmpi=[9.0, 9.0])
        assert wanted.judge(Samples(run)).verdict is Verdict.MET, "some operations only one of them has"

    def test_one_turn_does_not_say_how_sure_it_is(self) -> None:
        assert judge(figure([9.0]), 1.0, at_most=False) is Verdict.NOISY

    def test_a_report_tells_of_what_was_not_measured(self) -> None:
        judged = judge_occasions({}, every=True)
        assert len({item.name for item in judged}) == len(OCCASION_TARGETS)
        assert {item.verdict for item in judged} == {Verdict.ABSENT}
        assert judge_occasions({}) == []

    def test_a_profile_must_not_slow_down_any_cell(self) -> None:
        profiled = "ucc+profile"
        fair = samples(2, SMALL, **{"ucc": [1.0, 1.0], profiled: [1.01, 1.01]})
        assert never_slower_tuned(2).judge(Samples(fair)).verdict is Verdict.MET
        slow = [*fair, *samples(2, LARGE, **{"ucc": [1.0, 1.0], profiled: [1.2, 1.2]})]
        judged = never_slower_tuned(2).judge(Samples(slow))
        assert (judged.verdict, judged.name) == (Verdict.MISSED, "all_reduce 64 MB, 2 ranks")

    def test_a_profile_must_not_slow_down_a_ddp_step(self) -> None:
        plain = {"ucc": {"averaging": [1.0, 1.0]}, "gloo": {"averaging": [2.0, 2.0]}}
        assert judge_tuned_training(plain) == []
        for seconds, verdict in ((1.01, Verdict.MET), (1.2, Verdict.MISSED)):
            (judged,) = judge_tuned_training({**plain, "ucc+profile": {"averaging": [seconds, seconds]}})
            assert judged.verdict is verdict

    def test_overhead_is_what_we_add_to_the_dispatch(self) -> None:
        run = Samples(samples(2, SMALL, ucc=[4e-6, 4e-6], fake=[3e-6, 3e-6], openmpi=[1e-6, 1e-6]))
        assert OverheadTarget(SMALL, 0.9e-6).judge(run).verdict is Verdict.MISSED
        assert OverheadTarget(SMALL, 0.9e-6, of_openmpi=1.5).judge(run).verdict is Verdict.MET
        assert OverheadTarget(SMALL, 0.0, floors=2).judge(run).verdict is Verdict.MET

    def test_every_overhead_counts_by_its_worst(self) -> None:
        wanted = EveryOverheadTarget(2, COLLECTIVES, 0.8e-6, largest=1024)
        run = samples(2, SMALL, ucc=[4e-6, 4e-6], fake=[3.5e-6, 3.5e-6])
        run += samples(2, LARGE, ucc=[9e-3, 9e-3], fake=[3e-6, 3e-6])
        run += samples(2, Case("all_reduce", 4, "bfloat16"), ucc=[9e-6, 9e-6], fake=[3e-6, 3e-6])
        run += samples(2, Case("ping_pong", 4), ucc=[9e-6, 9e-6], fake=[3e-6, 3e-6])
        assert wanted.judge(Samples(run)).verdict is Verdict.MET
        run += samples(2, Case("barrier", 0), ucc=[4e-6, 4e-6], fake=[3e-6, 3e-6])
        run += samples(2, Case("reduce", 4), ucc=[5e-6, 5e-6], fake=[3e-6, 3e-6])
        judged = wanted.judge(Samples(run))
        assert (judged.verdict, judged.name) == (Verdict.MISSED, "reduce 4 B, 2 ranks")
        assert wanted.judge(Samples([])).verdict is Verdict.ABSENT

    def test_a_dtype_is_set_beside_as_many_bytes_of_float32(self) -> None:
        run = samples(2, SMALL, ucc=[1.0, 2.0]) + samples(2, Case("all_reduce", 4, "float16"), ucc=[1.3, 2.6])
        wanted = DtypeTarget(2, "float16", 1.4)
        assert wanted.judge(Samples(run)).verdict is Verdict.MET
        run += samples(2, LARGE, ucc=[1.0, 1.0])
        run += samples(2, Case("all_reduce", 64 << 20, "float16"), ucc=[1.5, 1.6])
        judged = wanted.judge(Samples(run))
        assert (judged.verdict, judged.name) == (Verdict.MISSED, "all_reduce 64 MB float16, 2 ranks")
        assert DtypeTarget(2, "bfloat16", 1.4).judge(Samples(run)).verdict is Verdict.ABSENT

    def test_the_targets_of_one_host_can_all_be_met(self) -> None:
        cases = [Case("all_reduce", nbytes) for nbytes in (4, 64 << 10, 1 << 20, 64 << 20)]
        ours: dict[str, list[float]] = {"ucc": [1e-6, 1e-6], "fake": [1e-6, 1e-6]}
        mpis = {name: [3e-6, 3e-6] for name in ("openmpi", "mpich", "intel-mpi")}
        run = [
            *(each for case in cases for each in samples(2, case, **ours, **mpis)),
            *samples(2, Case("reduce_scatter_tensor", 64 << 20), ucc=[1e-6, 1e-6], **mpis),
            *samples(2, Case("all_reduce", 4, "bfloat16"), ucc=[1e-6, 1e-6], gloo=[2e-6, 2e-6]),
            *samples(2, Case("all_reduce", 4, "float16"), ucc=[1e-6, 1e-6]),
            *(each for ranks in (4, 8) for each in samples(ranks, SMALL, ucc=[8e-6] * 2, fake=[3e-6] * 2)),
        ]  # fmt: skip
        assert [target.judge(Samples(run)).verdict for target in HOST_TARGETS] == [Verdict.MET] * len(
            HOST_TARGETS
        )
        assert {target.judge(Samples([])).verdict for target in HOST_TARGETS} == {Verdict.ABSENT}

    def test_the_faster_of_two_floors_counts(self) -> None:
        behind = {"alone+fake": [5e-6, 5e-6], "floor+fake": [4e-6, 4e-6]}
        run = Samples(samples(2, SMALL, ucc=[6e-6, 6e-6], fake=[3e-6, 3e-6], **behind))
        floor = OverheadTarget(SMALL, 0.5e-6).judge(run).floor
        assert floor is not None and floor.median == pytest.approx(1e-6)

    def test_a_miss_that_the_floor_misses_too_is_told_apart(self) -> None:
        both = {"fake": [3e-6, 3e-6], "gloo": [40e-6, 40e-6]}
        high, deep = (
            Samples(samples(2, SMALL, **{"ucc": [6e-6, 6e-6], "alone+fake": [floor, floor], **both}))
            for floor in (5e-6, 3.1e-6)
        )
        wanted = OverheadTarget(SMALL, 1.5e-6), EveryCellTarget(2, ("gloo",), 10.0)
        assert [target.judge(high).verdict for target in wanted] == [Verdict.BELOW_FLOOR] * 2
        assert [target.judge(deep).verdict for target in wanted] == [Verdict.MISSED] * 2
        floor = wanted[0].judge(deep).floor
        assert floor is not None and floor.median == pytest.approx(0.1e-6)
        assert "missed, by the floor too" in report.targets_table([wanted[0].judge(high)])

    def test_a_floor_that_is_slower_than_we_are_excuses_nothing(self) -> None:
        """As it may be for what we cut into pieces."""
        run = samples(2, LARGE, **{"ucc": [9.0, 9.0], "gloo": [18.0, 18.0], "alone+fake": [13.0, 13.0]})
        judged = EveryCellTarget(2, ("gloo",), 10.0).judge(Samples(run))
        assert judged.verdict is Verdict.MISSED and judged.floor is not None

    def test_the_floor_excuses_no_other_cell(self) -> None:
        run = [
            *samples(2, SMALL, **{"ucc": [6.0, 6.0], "gloo": [30.0, 30.0], "alone+fake": [6.0, 6.0]}),
            *samples(2, LARGE, **{"ucc": [9.0, 9.0], "gloo": [72.0, 72.0], "alone+fake": [6.0, 6.0]}),
        ]
        judged = EveryCellTarget(2, ("gloo",), 10.0).judge(Samples(run))
        assert (judged.verdict, judged.name) == (Verdict.MISSED, "all_reduce 64 MB, 2 ranks")

    def test_exit_status(self) -> None:
        met, missed, noisy = {Verdict.MET}, {Verdict.MET, Verdict.MISSED, Verdict.NOISY}, {Verdict.NOISY}
        assert [exit_status(False, True, verdicts) for verdicts in (met, missed, noisy)] == [0, 2, 3]
        assert exit_status(False, True, {Verdict.MET, Verdict.ABSENT}) == 1
        assert [exit_status(False, False, verdicts) for verdicts in (met, missed, noisy)] == [0, 0, 0]
        assert exit_status(True, False, met) == 1
        assert exit_status(False, True, {Verdict.BELOW_FLOOR}) == 2


class TestPlot:
    RUN = Samples(samples(2, SMALL, ucc=[4e-6, 5e-6], gloo=[1e-4]) + samples(2, LARGE, ucc=[1e-2]))

    def test_a_page_holds_all_it_shows(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.html"
        plot.draw(self.RUN, ["ucc", "gloo"], "2 cores <of> this", path)
        page = path.read_text()
        assert "<svg" in page and "2 cores &lt;of&gt; this" in page
        assert not re.search(r"(src|href)=\"http", page)

    def test_who_is_only_in_a_later_panel_is_named_too(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.svg"
        run = Samples(
            [*samples(2, SMALL, ucc=[4e-6]), *samples(2, Case("ping_pong", 4), ucc=[4e-6], ucxx=[2e-6])]
        )
        plot.draw(run, ["ucc", "ucxx"], "2 cores", path)
        page = path.read_text()
        assert [page.count(f"<!-- {name} -->") for name in ("ucc", "ucxx")] == [1, 1]

    def test_a_picture(self, tmp_path: Path) -> None:
        path = tmp_path / "figures.png"
        plot.draw(self.RUN, ["ucc", "gloo"], "2 cores", path)
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_another_kind_of_file(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"not figures\.gif"):
            plot.draw(self.RUN, ["ucc"], "", tmp_path / "figures.gif")

    def test_nothing_is_drawn_of_operations_without_a_size(self, tmp_path: Path) -> None:
        plot.draw(Samples(samples(2, Case("barrier", 0), ucc=[1e-5])), ["ucc"], "", tmp_path / "figures.svg")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("option", "name", "why"),
        [
            ("--plot", "figures.pdf", "not figures.pdf"),
            ("--json", "missing/figures.json", "there is no folder"),
        ],
    )
    def test_a_file_that_cannot_be_written_is_refused_before_the_run(
        self, option: str, name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            parse([option, str(tmp_path / name)])
        assert why in capsys.readouterr().err


class TestRuns:
    def test_every_number_of_a_result_is_checked(self) -> None:
        check(torch.full((4,), 3.0), 3.0, "all_reduce")
        with pytest.raises(RuntimeError, match="all_reduce gave 1 wrong numbers of 4"):
            check(torch.tensor([3.0, 0.0, 3.0, 3.0]), 3.0, "all_reduce")

    def test_a_rank_of_mpi_needs_neither_torch_nor_this_package(self, tmp_path: Path) -> None:
        """As in the environment of an MPI. Made-up packages stand for those that are installed there."""
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py" / "MPI.py").write_text(ONE_RANK_OF_MPI)
        (tmp_path / "numpy.py").touch()
        output = tmp_path / "figures.json"
        arguments = ["--cases", "barrier:0:float32", "--case-seconds", "0.001", "--batch-seconds", "0.0001"]
        without_packages = [sys.executable, "-S", worker.__file__, *arguments, "--output", str(output)]
        # The worker finds its modules also where Python does not look in its folder.
        for safe_path in ({}, {"PYTHONSAFEPATH": "1"}):
            environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **safe_path}
            subprocess.run(without_packages, env=environment, check=True)
            (row,) = json.loads(output.read_text())
            assert (row["op"], row["bytes"]) == ("barrier", 0) and 0 < row["seconds"] < 1
            output.unlink()

    def test_the_module_of_ucx_needs_neither_torch_nor_this_package(self) -> None:
        folder = str(Path(worker.__file__).parent)
        code = f"import sys; sys.path.insert(0, {folder!r}); import libraries.over_ucx"
        subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)

    def test_a_call_of_oneccl_keeps_its_arrays_allocated(self) -> None:
        numpy = pytest.importorskip("numpy")
        library = OneCclLibrary.__new__(OneCclLibrary)
        library.c, library.handle = SimpleNamespace(reduce=lambda *_: 0), ctypes.c_void_p()
        array = numpy.zeros(4)
        alive = weakref.ref(array)
        call = library._bound("reduce", (array,), 4)
        del array
        assert alive() is not None
        call()

    def test_turns_interleave(self) -> None:
        order = [
            (repetition, peer.name) for repetition, peer in driver.turns([PEERS["ucc"], PEERS["gloo"]], 2)
        ]
        assert order == [(0, "ucc"), (0, "gloo"), (1, "gloo"), (1, "ucc")]

    def test_peers_take_turns_with_few_operations_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Four each, all sizes of one together; of ranks that share cores all at once."""
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        cases = [*make_cases(list(OPS), [4, 1024]), Case("all_reduce", 1 << 20)]
        parts = driver.heats(2, cases)
        assert [list(dict.fromkeys(case.op for case in part)) for part in parts] == [
            list(OPS[first : first + 4]) for first in range(0, len(OPS), 4)
        ]
        assert sorted(case for part in parts for case in part) == sorted(cases)
        assert driver.heats(3, cases) == [cases]
        assert driver.heats(3, []) == []  # as where all are too large for many ranks

        ran = []

        def run(peer: Peer, _: int, __: str, arguments: list[str], *___: object) -> list[dict[str, object]]:
            ran.append((peer.name, arguments[1].split(":")[0]))
            return [{"op": ran[-1][1], "bytes": 4, "dtype": "float32", "seconds": 3e-6}]

        monkeypatch.setattr(driver, "run_peer", run)
        bench = driver.Bench([PEERS["ucc"], PEERS["gloo"]], 2, lambda _: None)
        bench.time_cases(2, make_cases(list(OPS[:8]), [4]), 0.1)
        first, fifth = OPS[0], OPS[4]
        assert ran[:4] == [("ucc", first), ("gloo", first), ("gloo", fifth), ("ucc", fifth)]
        assert [sample.repetition for sample in bench.samples] == [0] * 4 + [1] * 4

    def test_a_torch_peer_is_one_process_a_rank_and_an_mpi_peer_one_launcher(self) -> None:
        assert [extra["RANK"] for _, extra in commands(PEERS["gloo"], 3, "worker.py", [], 1, Place())] == [
            "0",
            "1",
            "2",
        ]
        ((command, extra),) = commands(PEERS["openmpi"], 3, "worker.py", ["--x"], 1, Place())
        assert command[command.index("-n") + 1] == "3"
        assert command[-1] == "--x"
        assert extra == {}

    def test_ourselves_by_a_profile_is_a_peer(self, tmp_path: Path) -> None:
        ((command, extra),) = commands(tuned(tmp_path / "it.toml"), 1, "worker.py", [], 1, Place())
        assert command[command.index("--backend") + 1] == "ucc"
        assert extra["TORCH_UCC_PROFILE"] == str(tmp_path / "it.toml")
        ((_, extra),) = commands(PEERS["ucc"], 1, "worker.py", [], 1, Place())
        assert extra["TORCH_UCC_PROFILE"] == "", "the caller's own is not applied"

    def test_between_hosts_ranks_are_spread(self, tmp_path: Path) -> None:
        class Hosts:
            def __len__(self) -> int:
                return 2

            def address(self, i: int) -> str:
                return f"10.0.0.{i}"

            def at(self, i: int) -> list[str]:
                return ["env", f"HOST={i}"]

            def at_switch(self) -> list[str]:
                return ["env", "HOST=switch"]

        between: Any = Between(Hosts(), tmp_path)  # type: ignore[arg-type]
        starts = commands(PEERS["gloo"], 4, "worker.py", [], 1, between)
        assert [command[:2] for command, _ in starts] == [["env", f"HOST={i}"] for i in (0, 0, 1, 1)]
        assert {extra["GLOO_SOCKET_IFNAME"] for _, extra in starts} == {"eth0"}
        ((command, _),) = commands(PEERS["openmpi"], 4, "worker.py", [], 1, between)
        assert command[:2] == ["env", "HOST=switch"] and "tcp" in command[command.index("btl") + 1]
        assert command[command.index("--host") + 1] == "10.0.0.0:2,10.0.0.1:2"
        agent = command[command.index("plm_ssh_agent") + 1]
        said = subprocess.run([agent, "10.0.0.1", "echo", "on", "$HOST"], capture_output=True, text=True)
        assert said.stdout == "on 1\n", said.stderr

    def test_a_failing_rank_ends_the_others_and_is_quoted(self) -> None:
        sleeper = [sys.executable, "-c", "import time; time.sleep(60)"], dict[str, str]()
        failing = [sys.executable, "-c", "raise SystemExit('no such fabric')"], dict[str, str]()
        reason = driver.run_all([sleeper, failing], 30.0, signal.SIGABRT)
        assert reason is not None
        assert "exit status 1" in reason
        assert "no such fabric" in reason

    def test_a_hanging_rank_shows_its_stack(self) -> None:
        sleeper = (
            [sys.executable, "-c", "import time\ndef stuck(): time.sleep(60)\nstuck()"],
            dict[str, str](),
        )
        reason = driver.run_all([sleeper], 0.5, signal.SIGABRT)
        assert reason is not None
        assert "no end after" in reason
        assert "in stuck" in reason

    @pytest.mark.parametrize(
        ("failing", "turns", "timed"), [({0}, 4, 3), ({0, 1, 2, 3}, 2, 0), ({1, 3}, 4, 2)]
    )
    def test_a_peer_that_fails_is_reported_and_tried_once_more(
        self, monkeypatch: pytest.MonkeyPatch, failing: set[int], turns: int, timed: int
    ) -> None:
        tried = []

        def run(peer: object, *_: object, **__: object) -> object:
            tried.append(peer)
            if len(tried) - 1 in failing:
                raise driver.MeasureError("it broke")
            return [{"op": SMALL.op, "bytes": SMALL.nbytes, "dtype": "float32", "seconds": 1.0}]

        monkeypatch.setattr(driver, "run_peer", run)
        bench = driver.Bench([PEERS["gloo"]], 4, lambda _: None)
        bench.time_cases(2, [SMALL], 0.1)
        assert (len(tried), len(bench.samples)) == (turns, timed)
        assert bench.failures == ["it broke"] * min(len(failing), driver.TRIES)

    def test_who_stops_a_run_gets_what_it_has(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        cores_given_back: None,
    ) -> None:
        turns = iter(range(2))

        def run(*_: object, **__: object) -> object:
            if next(turns, None) is None:
                os.kill(os.getpid(), signal.SIGTERM)
            return [{"op": "all_reduce", "bytes": 4, "dtype": "float32", "seconds": 3e-6}]

        monkeypatch.setattr(driver, "run_peer", run)
        before = signal.getsignal(signal.SIGTERM)
        assert main(["--peers", "ucc,gloo", "--ranks", "2", "--ops", "all_reduce", "--repetitions", "5"]) == 1
        printed = capsys.readouterr()
        assert "3 us" in printed.out and "the run was stopped" in printed.err
        assert "\r" not in printed.err, "a progress bar is for a terminal"
        assert signal.getsignal(signal.SIGTERM) is before

    def test_a_report_has_every_occasion_beside_gloo(
        self, monkeypatch: pytest.MonkeyPatch, cores_given_back: None
    ) -> None:
        watched, timed = [], []

        def watch(_: object, occasion: driver.Occasion, __: object, peers: list[Peer], ___: int) -> None:
            watched.append((occasion.name, *(peer.name for peer in peers)))

        monkeypatch.setattr(driver.Bench, "watch", watch)
        monkeypatch.setattr(driver.Bench, "time_cases", lambda _, ranks, *__: timed.append(ranks))
        main(["--report", "--repetitions", "1"])
        assert watched == [
            (name, "ucc", "gloo", *(["alone"] if each.has_floor else []))
            for name, each in driver.OCCASIONS.items()
        ]
        assert timed[:3] == [2, 4, 8]

    def test_a_missing_mpi_environment_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TORCH_UCC_BENCH_PEERS", str(tmp_path))
        with pytest.raises(driver.MeasureError, match=r"mpich, 2 ranks: .*ci/bench makes the environments"):
            driver.run_peer(PEERS["mpich"], 2, "worker.py", [], 5.0, Place())

    def test_needed_environments(self, capsys: pytest.CaptureFixture[str]) -> None:
        for asked in (["--peers", "gloo,mpich,fake"], ["--idle"], ["--starting"], [], ["--report"]):
            assert main(["--list-made-peers", *asked]) == 0
        told = capsys.readouterr().out
        assert told.splitlines() == [
            "mpich",
            "",
            "alone",
            "openmpi mpich",
            "alone floor openmpi mpich intel-mpi oneccl ucxx",
        ]

    def test_ucx_by_itself_has_an_environment_and_no_launcher(self) -> None:
        starts = commands(PEERS["ucxx"], 2, "worker.py", [], 1, Place())
        assert [extra["RANK"] for _, extra in starts] == ["0", "1"]
        assert all(command[0].endswith("ucxx/bin/python") for command, _ in starts)

    def test_a_peer_that_can_do_none_of_it_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(driver, "run_peer", lambda *_: pytest.fail("it was started"))
        bench = driver.Bench([PEERS["ucxx"]], 1, lambda _: None)
        bench.time_cases(2, [SMALL], 0.1)
        assert (bench.failures, bench.samples) == ([], [])

    def test_a_peer_that_lacks_a_dtype_is_left_out_of_it_and_the_run_says_why(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: dict[str, str] = {}

        def run(peer: Peer, _: int, __: str, arguments: list[str], *___: object) -> list[dict[str, object]]:
            asked[peer.name] = arguments[1]
            return []

        monkeypatch.setattr(driver, "run_peer", run)
        bench = driver.Bench([PEERS[name] for name in ("ucc", "intel-mpi", "floor")], 1, lambda _: None)
        bench.time_cases(2, make_cases(["all_reduce", "barrier"], [4], ["float32", "bfloat16"]), 0.1)
        few = "all_reduce:4:float32,barrier:0:float32"
        assert asked == {
            "ucc": "all_reduce:4:float32,all_reduce:4:bfloat16,barrier:0:float32",
            "intel-mpi": few,
            "floor": few,
        }
        assert bench.left_out == [
            "intel-mpi, bfloat16: neither numpy nor mpi4py has it (all_reduce)",
            "floor, bfloat16: the loops of C know only float32 (all_reduce)",
        ]
        assert bench.failures == []

    def test_intel_mpi_and_oneccl_have_environments_and_a_launcher(self) -> None:
        for name, backend in (("intel-mpi", "mpi"), ("oneccl", "oneccl")):
            ((command, _),) = commands(PEERS[name], 3, "worker.py", [], 1, Place())
            assert command[0].endswith(f"{name}/bin/mpiexec") and command[command.index("-n") + 1] == "3"
            assert command[command.index("--backend") + 1] == backend

    def test_the_function_of_another_program_is_a_peer_with_its_name(self) -> None:
        args = parse(["--vs", "package.module:mine", "--peers", "ucc"])
        (peer,) = args.rivals
        assert peer == made_by("package.module:mine") and peer.name == "mine"
        ((command, _),) = commands(peer, 1, "worker.py", [], 1, Place())
        assert command[command.index("--backend") + 1] == "package.module:mine"
        assert set(OPS) - peer.lacks == {"all_reduce"}

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--dtypes", "float12"],
            ["--vs", "package.module"],
            ["--vs", "package.module:gloo"],
            ["--vs", "a:mine", "--vs", "b:mine"],
            ["--vs", "a:mine", "--idle"],
            ["--busy", "-1"],
            ["--busy", "2", "--idle"],
            ["--busy", "2", "--hosts", "2"],
            ["--hosts", "2", "--peers", "floor"],
            ["--hosts", "2", "--peers", "intel-mpi"],
            ["--peers", "nccl"],
            ["--idle", "--peers", "mpich"],
            ["--sizes", "3"],
            ["--hosts", "2", "--peers", "mpich"],
            ["--hosts", "2", "--idle"],
            ["--report", "--idle"],
            ["--rate", "4gbit"],
        ],
    )
    def test_wrong_arguments(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit):
            parse(arguments)

    @pytest.mark.usefixtures("cores_given_back")
    def test_real_run_of_the_recorder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        output = tmp_path / "figures.json"
        few = ["--repetitions", "1", "--trials", "2"]
        assert main(["--recording", "--peers", "ucc,gloo", *few, "--json", str(output)]) == 0
        printed = capsys.readouterr().out.splitlines()
        (row,) = [line for line in printed if "<= 100 ns" in line]
        assert row.startswith("the flight recorder, an operation")
        (row,) = [line for line in printed if "<= 2.00%" in line]
        assert row.startswith("torch-ucc record, a DDP step")
        data = json.loads(output.read_text())
        assert list(data["occasions"]) == ["ucc"]
        assert {name: len(values) for name, values in data["occasions"]["ucc"].items()} == {
            "recording": PAIRS,
            "recorded": 2,
        }
        assert [target["unit"] for target in data["targets"]] == ["nanoseconds", "share of the time"]
        assert data["failures"] == []

    @pytest.mark.usefixtures("cores_given_back")
    def test_real_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        output = tmp_path / "figures.json"
        arguments = ["--peers", "gloo,fake", "--ranks", "2", "--sizes", "4,1K", "--repetitions", "1"]
        arguments += ["--ops", ",".join(OPS), "--case-seconds", "0.01", "--json", str(output)]
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert all(op in printed for op in OPS)
        assert "not measured" in printed
        data = json.loads(output.read_text())
        assert data["machine"]["torch"]
        assert (
            len(data["samples"]) == 2 * (2 * len(OPS) - 1) - 2
        )  # barrier has one size, and fake no any_source
        assert all(0 < sample["seconds"] < 1 for sample in data["samples"])
        assert data["failures"] == []

    @pytest.mark.usefixtures("cores_given_back", "loops_of_c")
    def test_real_training_of_what_there_is_to_reach(self, tmp_path: Path) -> None:
        output = tmp_path / "figures.json"
        main(["--training", "--trials", "1", "--repetitions", "1", "--json", str(output)])
        data = json.loads(output.read_text())
        assert data["failures"] == []
        assert {peer: set(found) for peer, found in data["occasions"].items()} == {
            "ucc": {"hidden", "communication", "averaging"},
            "gloo": {"hidden", "communication", "averaging"},
            "alone": {"communication", "averaging"},
        }

    @pytest.mark.usefixtures("cores_given_back", "loops_of_c")
    def test_real_run_of_what_there_is_to_reach(self, tmp_path: Path) -> None:
        able = [op for op in OPS if op not in PEERS["alone"].lacks]
        output = tmp_path / "figures.json"
        arguments = ["--peers", "alone", "--ranks", "2,3", "--sizes", "4,64K", "--repetitions", "1"]
        arguments += ["--ops", ",".join(able), "--case-seconds", "0.01", "--json", str(output)]
        assert main(arguments) == 0  # each op's result was right, or its rank had failed
        data = json.loads(output.read_text())
        of_peers = Counter((sample["peer"], sample["ranks"]) for sample in data["samples"])
        cells = 2 * len(able) - 1  # barrier has one size
        assert of_peers == {(peer, ranks): cells for peer in ("alone", "alone+fake") for ranks in (2, 3)}
        assert data["failures"] == []

    @pytest.mark.usefixtures("cores_given_back", "loops_of_c")
    def test_real_run_of_what_shared_memory_can_reach(self, tmp_path: Path) -> None:
        """64 KB take one chunk and 1 MB several; 3 ranks share two cores."""
        output = tmp_path / "figures.json"
        arguments = ["--peers", "floor", "--ranks", "2,3", "--sizes", "4,64K,1M", "--repetitions", "1"]
        arguments += [
            "--ops",
            "all_reduce,broadcast,barrier",
            "--case-seconds",
            "0.01",
            "--json",
            str(output),
        ]
        assert main(arguments) == 0
        data = json.loads(output.read_text())
        of_peers = Counter((sample["peer"], sample["ranks"]) for sample in data["samples"])
        assert of_peers == {(peer, ranks): 7 for peer in ("floor", "floor+fake") for ranks in (2, 3)}

    @pytest.mark.usefixtures("cores_given_back")
    def test_real_run_beside_busy_processes_with_dtypes_and_another_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "rivals.py").write_text(RIVAL)
        monkeypatch.chdir(tmp_path)
        output = tmp_path / "figures.json"
        arguments = ["--peers", "gloo", "--vs", "rivals:mine", "--busy", "1", "--ops", "all_reduce"]
        arguments += ["--sizes", "1K", "--dtypes", "float32,float16", "--repetitions", "1"]
        assert main([*arguments, "--case-seconds", "0.01", "--json", str(output)]) == 0
        data = json.loads(output.read_text())
        found = [(each["peer"], each["case"]["dtype"], each["busy"]) for each in data["samples"]]
        assert found == [(peer, dtype, 1) for peer in ("gloo", "mine") for dtype in ("float32", "float16")]
        assert data["failures"] == []
