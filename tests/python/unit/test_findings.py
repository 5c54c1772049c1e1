"""What `torch-ucc status` concludes from ranks that are played."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_ucc import _style
from torch_ucc.status import job as jobs
from torch_ucc.status import segment, stacks
from torch_ucc.status.__main__ import main as status
from torch_ucc.status.findings import Finding, confirmed, findings
from torch_ucc.status.job import Job, runs, shown
from torch_ucc.status.network import Connection
from torch_ucc.status.screen import ROWS, as_data, detail, listing, page, screen
from torch_ucc.status.segment import Process
from torch_ucc.tracing.records import Record

NOW = 100_000_000_000
SECOND = 1_000_000_000


def record(
    id: int, seq: int, since: float, took: float | None = None, op: str = "all_reduce", **more: Any
) -> Record:
    """An operation that was called `since` seconds ago and took so long; None: it has not ended."""
    issued = NOW - int(since * SECOND)
    fields: dict[str, Any] = {
        "id": id,
        "group": 1,
        "seq": seq,
        "op": op,
        "message": False,
        "dtype": "float32",
        "reduce_op": "SUM",
        "input_elements": 1024,
        "output_elements": 1024,
        "bytes": 4096,
        "root": -1,
        "peer": -1,
        "tag": 0,
        "route": "memory",
        "state": "posted" if took is None else "completed",
        "result": "ok",
        "issued_ns": issued,
        "posted_ns": issued + 1,
        "ended_ns": 0 if took is None else issued + int(took * SECOND),
        "site": 0,
        "awaited_ns": issued + 1,
    }
    return Record(**{**fields, **more})


def process(
    rank: int,
    size: int,
    records: list[Record],
    state: str = "S",
    hosts: int = 1,
    gone: dict[int, str] | None = None,
    failure: str = "",
    groups: int = 1,
) -> Process:
    each = size // hosts
    facts: dict[str, Any] = {
        "process": {
            "program": "train.py",
            "torch": "2.13.0",
            "torch_ucc": "0.1",
            "boot_id": "b",
        },
        "context/1": {
            "number": 1,
            "world": "1234567890",
            "rank": rank,
            "size": size,
            "host": rank // each,
            "hosts": [{"name": f"n{h}", "ranks": f"{h * each}-{(h + 1) * each - 1}"} for h in range(hosts)],
            "doors": [],
        },
    }
    for number in range(1, groups + 1):
        facts[f"group/{number}"] = {
            "number": number,
            "name": str(number - 1),
            "rank": rank,
            "ranks": f"0-{size - 1}",
            "closed": False,
            "failure": failure,
            "errors": {},
            "context": 1,
        }
    for other, what in (gone or {}).items():
        facts[f"gone/context/1/{other}"] = {"rank": other, "what": what, "at_ns": NOW}
    stat = f"{1000 + rank} (python (3) x) {state} 1 2 3"
    return Process(1000 + rank, stat, NOW, False, facts, records)


def job(processes: list[Process]) -> Job:
    (found,) = jobs.assemble(processes)
    return found


def test_ranks_are_written_as_runs() -> None:
    assert list(runs("0-3,8,10-14:2")) == [0, 1, 2, 3, 8, 10, 12, 14]
    assert list(runs("")) == []
    assert shown([5, 0, 1, 2, 9]) == "0-2,5,9"


@pytest.mark.parametrize("name", ["12345678", "train.py", "1001"])
def test_a_job_is_called_by_its_name_its_program_or_a_pid(name: str) -> None:
    made = job([process(rank, 2, []) for rank in range(2)])
    assert made.is_called(name) and not made.is_called(name + "0")


def test_a_job_where_all_is_well() -> None:
    made = job([process(rank, 4, [record(1, 1, 5, 0.001), record(2, 2, 0.5)]) for rank in range(4)])
    assert findings(made) == []
    text = screen(made, [])
    assert "Job 12345678: train.py, 4 ranks on one host (torch-ucc 0.1, torch 2.13.0)" in text
    assert "Nothing is wrong that can be seen." in text
    assert [line.split()[0] for line in text.splitlines() if "all_reduce" in line] == ["0-3"]


def test_a_rank_that_computes_while_the_others_wait() -> None:
    late = process(2, 4, [record(1, 6, 12.5, 0.001)], state="R")
    waiting = [process(rank, 4, [record(1, 6, 12.5, 0.001), record(2, 7, 12.4)]) for rank in (0, 1, 3)]
    (found,) = findings(job([*waiting, late]))
    assert found.ranks == (2,)
    assert found.text == (
        "Rank 2 (host n0, pid 1002) has been outside of torch-ucc for 12.50 s and runs; its last call was "
        "seq 6 all_reduce(float32[1024] SUM) of group '0'. Ranks 0-1,3 have waited for rank 2 for 12.40 s in "
        "seq 7 all_reduce(float32[1024] SUM) of group '0'."
    )


def test_a_stopped_rank_that_has_called() -> None:
    ranks = [process(rank, 3, [record(2, 7, 9.0)], state="T" if rank == 1 else "S") for rank in range(3)]
    (found,) = findings(job(ranks))
    assert found.ranks == (1,)
    assert "is stopped in seq 7 all_reduce(float32[1024] SUM) of group '0'." in found.text


def test_a_chain_of_waits_ends_at_its_cause() -> None:
    """Rank 0 waits for rank 1 in one group, which waits in another group for rank 2, which computes."""
    first = process(0, 3, [record(1, 4, 20)], groups=2)
    second = process(1, 3, [record(1, 3, 30, 0.1), record(2, 8, 25, group=2)], groups=2)
    third = process(2, 3, [record(1, 3, 30, 0.1), record(2, 7, 29, 0.1, group=2)], state="R", groups=2)
    (found,) = findings(job([first, second, third]))
    assert found.ranks == (2,)


def test_ranks_in_a_circle_are_told_by_the_diagnosis() -> None:
    one = process(0, 2, [record(1, 1, 20, group=1)], groups=2)
    other = process(1, 2, [record(1, 1, 20, group=2)], groups=2)
    made = job([one, other])
    (found,) = findings(made)
    assert found.ranks == (0, 1)
    assert found.text.startswith("Ranks wait for each other in a circle")
    assert [len(rank.records) for rank in made.ranks.values()] == [1, 1]


def test_a_rank_that_called_another_operation_and_went_on() -> None:
    """A broadcast does not keep its root. The root then waits for those whom its broadcast did not reach."""
    ranks = [process(rank, 4, [record(1, 50, 31, 0.1), record(2, 51, 30)], hosts=4) for rank in range(4)]
    sent = record(2, 51, 30, 0.1, op="broadcast", root=1)
    ranks[1] = process(1, 4, [record(1, 50, 31, 0.1), sent, record(3, 52, 29)], hosts=4)
    (found,) = findings(job(ranks))
    assert found.ranks == (1,)
    assert "different operations at seq 51: rank 1 called seq 51 broadcast" in found.text
    assert "; ranks 0, 2, 3 called seq 51 all_reduce" in found.text


def test_a_wrong_call_in_an_operation_that_all_have_called() -> None:
    ranks = [process(rank, 4, [record(1, 51, 30)], hosts=2) for rank in range(4)]
    ranks[1] = process(1, 4, [record(1, 51, 30, op="broadcast", root=1)], hosts=2)
    (found,) = findings(job(ranks))
    assert found.ranks == (1,)


def test_a_group_failed_since_calls_differ() -> None:
    """The error of a rank names a rank of its host, which may be right, and its own call wrong."""
    others = [process(r, 3, [record(1, 5, 9)], failure="rank 0 called another collective") for r in (1, 2)]
    wrong = process(0, 3, [record(1, 5, 9, op="barrier")], failure="rank 1 called another collective")
    (found,) = findings(job([wrong, *others]))
    assert found.ranks == (0,)
    assert "rank 0 called seq 5 barrier" in found.text


def test_two_ranks_that_differ_are_both_told_and_none_is_accused() -> None:
    one, other = process(0, 2, [record(1, 5, 9)]), process(1, 2, [record(1, 5, 9, op="barrier")])
    (found,) = findings(job([one, other]))
    assert found.ranks == ()
    assert "rank 0 called seq 5 all_reduce" in found.text and "rank 1 called seq 5 barrier" in found.text


def test_a_receive_whose_sender_does_something_else() -> None:
    receives = record(2, 1, 5, op="recv", message=True, peer=1, tag=3)
    (found,) = findings(job([process(0, 2, [receives]), process(1, 2, [], state="R")]))
    assert found.ranks == (1,)
    assert "has called nothing yet and runs" in found.text


def test_what_has_ended_comes_first() -> None:
    gone = {3: "rank 3 (host n1, pid 1003) has died"}
    ranks = [
        process(rank, 4, [record(1, 1, 5)], hosts=2, gone=gone, failure="it says why") for rank in range(3)
    ]
    told = findings(job(ranks))
    assert [each.ranks for each in told[:1]] == [(3,)]
    assert told[0].text == "Rank 3 (host n1, pid 1003) has died."
    assert told[1].text == "Group '0' has failed. Rank 0 reported this error: it says why"


def test_a_rank_of_which_nothing_is_seen_is_not_accused() -> None:
    """It may be starting, closing, or on a host that was not asked."""
    made = job([process(rank, 4, [record(1, 1, 0.1)], hosts=2) for rank in range(3)])
    assert findings(made) == []
    assert made.unseen() == [3]
    assert any(line.split()[:3] == ["3", "not", "seen"] for line in screen(made, []).splitlines())


def test_a_host_that_gave_no_answer() -> None:
    made = job([process(rank, 4, [record(1, 1, 0.1)], hosts=2) for rank in range(2)])
    made.silent["n1"] = "no answer from rank 2 in 1.5 s"
    (found,) = findings(made)
    assert found.ranks == ()
    assert (
        found.text
        == "Host n1 does not answer (no answer from rank 2 in 1.5 s). Nothing is known of its ranks."
    )


def test_an_operation_that_nobody_waits_for_accuses_nobody() -> None:
    """An asynchronous call of a rank that computes."""
    computes = process(0, 2, [record(1, 1, 60, awaited_ns=0)], state="R")
    assert findings(job([computes, process(1, 2, [], state="R")])) == []


def test_a_rank_that_may_wait_for_a_future() -> None:
    """As DDP does: the recorder does not see it, but the process is idle."""
    idle = process(0, 2, [record(1, 1, 60, awaited_ns=0)])
    (found,) = findings(job([idle, process(1, 2, [], state="R")]))
    assert found.ranks == (1,)
    assert (
        "Rank 0 called seq 1 all_reduce(float32[1024] SUM) of group '0' 60.00 s ago. This operation cannot "
        "end without rank 1" in found.text
    )


def test_a_receive_that_was_posted_early_accuses_nobody() -> None:
    early = record(1, 1, 3600, op="recv", message=True, peer=1, awaited_ns=0)
    assert findings(job([process(0, 2, [early]), process(1, 2, [], state="R")])) == []


def test_both_ends_of_a_long_message_are_in_it() -> None:
    sends = record(1, 1, 3, op="send", message=True, peer=1)
    receives = record(1, 1, 3, op="recv", message=True, peer=0)
    assert findings(job([process(0, 2, [sends]), process(1, 2, [receives])])) == []


def test_two_receives_that_wait_for_each_other() -> None:
    ranks = [
        process(rank, 2, [record(1, 1, 3, op="recv", message=True, peer=1 - rank, tag=4)])
        for rank in range(2)
    ]
    (found,) = findings(job(ranks))
    assert found.ranks == (0, 1)
    assert found.text.startswith(
        "Ranks 0-1 wait for each other. Rank 0 has waited for rank 1 for 3.00 s in seq 1 "
    )
    assert "Rank 1 has waited for rank 0 for 3.00 s in seq 1 " in found.text


def test_a_receive_and_a_collective_that_wait_for_each_other() -> None:
    receives = process(1, 2, [record(1, 7, 5, 0.1), record(2, 1, 4, op="recv", message=True, peer=0)])
    reduces = process(0, 2, [record(1, 7, 5, 0.1), record(2, 8, 4.5)])
    (found,) = findings(job([reduces, receives]))
    assert "Rank 0 has waited for rank 1 for 4.50 s in seq 8 all_reduce" in found.text
    assert "Rank 1 has waited for rank 0 for 4.00 s in seq 1 recv" in found.text


def listening(rank: int) -> Record:
    """One thread of the rank waits for a message of the other one, and did so before all that follows."""
    return record(1, 1, 50, op="recv", message=True, peer=1 - rank)


def test_threads_that_wait_for_messages_accuse_nobody() -> None:
    works = [process(rank, 2, [listening(rank), record(2, 1, 0.5)]) for rank in range(2)]
    assert findings(job(works)) == []


def test_who_computes_is_named_beside_threads_that_wait_for_messages() -> None:
    waits = process(0, 2, [listening(0), record(2, 1, 40, 0.1), record(3, 2, 30)])
    computes = process(1, 2, [listening(1), record(2, 1, 40, 0.1)], state="R")
    (found,) = findings(job([waits, computes]))
    assert found.ranks == (1,)
    assert "Rank 0 has waited for rank 1 for 30.00 s in seq 2 all_reduce" in found.text


def test_a_receive_from_oneself_that_nobody_sends() -> None:
    (found,) = findings(job([process(0, 1, [record(1, 1, 3, op="recv", message=True, peer=0)])]))
    assert found.text.startswith("Rank 0 waits for itself. Rank 0 has waited for rank 0 for 3.00 s in seq 1 ")


def test_a_chain_of_receives_ends_at_the_rank_that_computes() -> None:
    ranks = [process(rank, 3, [record(1, 1, 5, op="recv", message=True, peer=rank + 1)]) for rank in range(2)]
    (found,) = findings(job([*ranks, process(2, 3, [], state="R")]))
    assert found.ranks == (2,)


@pytest.mark.parametrize(("peer", "named"), [(-1, []), (0, []), (2, [(1,)])])
def test_a_send_and_the_receive_of_its_peer(peer: int, named: list[tuple[int, ...]]) -> None:
    sends = process(0, 3, [record(1, 1, 3, op="send", message=True, peer=1)])
    receives = process(1, 3, [record(1, 1, 3, op="recv", message=True, peer=peer, awaited_ns=0)], state="R")
    assert [found.ranks for found in findings(job([sends, receives, process(2, 3, [])]))] == named


def test_a_broadcast_needs_its_root_only() -> None:
    waits = [process(rank, 4, [record(2, 7, 5, op="broadcast", root=0)]) for rank in (1, 2)]
    others = [process(rank, 4, [record(1, 6, 9, 0.1)], state="R") for rank in (0, 3)]
    (found,) = findings(job([*waits, *others]))
    assert found.ranks == (0,)


def test_a_monitored_barrier_counts_by_itself() -> None:
    barrier = record(3, 1, 5, op="monitored_barrier", route="store")
    ranks = [process(rank, 2, [record(1, 50, 9, 0.1), barrier]) for rank in range(2)]
    assert findings(job(ranks)) == []


def test_a_rank_that_waits_in_another_group_of_connections() -> None:
    """The recorder of its process says so."""
    waits = process(0, 2, [record(1, 1, 9)])
    elsewhere = process(1, 2, [record(1, 1, 8, group=5)])
    group = {**elsewhere.facts["group/1"], "number": 5, "name": "other", "context": 2}
    elsewhere = dataclasses.replace(elsewhere, facts={**elsewhere.facts, "group/5": group})
    (found,) = findings(job([waits, elsewhere]))
    assert (
        "Rank 1 (host n0, pid 1001) is in seq 1 all_reduce(float32[1024] SUM) of group 'other'" in found.text
    )


def test_a_collective_that_the_ring_no_longer_holds_accuses_nobody() -> None:
    waits = process(0, 2, [record(9000, 3, 9)])
    busy = process(1, 2, [record(20000, 9000, 0.1, 0.01, op="send", message=True, peer=0)])
    assert findings(job([waits, busy])) == []


def test_an_operation_that_takes_long_although_all_have_called_it() -> None:
    assert findings(job([process(rank, 2, [record(1, 1, 9)]) for rank in range(2)])) == []
    (found,) = findings(job([process(rank, 2, [record(1, 1, 30)]) for rank in range(2)]))
    assert found.ranks == ()
    assert found.text.startswith("All ranks have called seq 1 all_reduce(float32[1024] SUM) of group '0'")


def test_an_operation_that_takes_long_while_a_rank_cannot_be_seen() -> None:
    (found,) = findings(job([process(rank, 3, [record(1, 1, 30)]) for rank in range(2)]))
    assert found.text.startswith("Rank 0 has been in seq 1 all_reduce(float32[1024] SUM) of group '0' for 30")
    assert found.text.endswith("Nothing shows that rank 2 has called it.")


def test_a_broadcast_that_takes_long_before_all_have_called_it() -> None:
    """Its root has called it, so rank 2 is not accused."""
    rows = [record(1, 1, 30, op="broadcast", root=0)]
    (found,) = findings(job([process(0, 3, rows), process(1, 3, rows), process(2, 3, [])]))
    assert found.ranks == ()
    assert found.text.endswith("Nothing shows that rank 2 has called it.")


@pytest.mark.parametrize(("option", "code"), [("--json", 1), ("--html=page.html", 2), ("--rank=0", 2)])
def test_several_jobs(
    option: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    found = [job([process(rank, 2, [record(1, 1, 30)]) for rank in range(2)]) for _ in range(2)]
    found[1].world = "9876543210"
    monkeypatch.setattr(jobs, "jobs", lambda **_: found)
    assert status([option]) == code
    told = capsys.readouterr()
    if code == 1:
        assert [len(each["findings"]) for each in json.loads(told.out)] == [1, 1]
    else:
        assert "several jobs run: name one" in told.err and not list(tmp_path.iterdir())


def test_a_descriptor_that_is_closed_meanwhile_hides_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "77" / "fd"
    folder.mkdir(parents=True)
    for name in "0123":
        (folder / name).symlink_to("/dev/null" if name == "0" else f"{segment._NAME} (deleted)")
    real, gone = os.readlink, iter([True])

    def readlink(path: str) -> str:
        if next(gone, False):
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(os, "readlink", readlink)
    assert {pid for pid, _ in segment.processes(tmp_path)} == {77}


def test_only_what_a_second_look_confirms_is_said() -> None:
    stays, gone, new = Finding("a", (1,)), Finding("b", (2,)), Finding("c", (3,))
    assert confirmed([stays, gone], [stays, new, Finding("d")]) == [stays, Finding("d")]


def late_by(seconds: float, host: int, ago: float = 0) -> list[Process]:
    """Eight ranks on two hosts; those of a host come late to each of 30 operations."""
    processes = []
    for rank in range(8):
        late = seconds if rank // 4 == host else 0.0
        rows = [record(seq, seq, 30 + ago - seq - late, 0.4 - late) for seq in range(1, 30)]
        processes.append(process(rank, 8, rows, hosts=2))
    return processes


def test_a_slow_host() -> None:
    (found,) = findings(job(late_by(0.35, 1)))
    assert found.ranks == (4, 5, 6, 7)
    assert found.text.startswith("Host n1 is slow: one of its ranks was the last to call 29 of the last 29 ")


def test_a_host_that_is_hardly_late() -> None:
    assert findings(job(late_by(0.01, 1))) == []


def test_a_host_that_was_late_before_a_long_pause() -> None:
    assert findings(job(late_by(0.35, 1, ago=20))) != []
    assert findings(job(late_by(0.35, 1, ago=60))) == []
    first, *others = late_by(0.35, 1, ago=60)
    posted = record(99, 1, 80, op="recv", message=True, peer=1, awaited_ns=0)
    assert findings(job([dataclasses.replace(first, records=[posted, *first.records]), *others])) == []


def test_a_thousand_ranks_fit_one_screen() -> None:
    ranks = [process(rank, 1000, [record(1, 6, 3, 0.1), record(2, 7, 2.5)], hosts=8) for rank in range(1000)]
    ranks[77] = process(77, 1000, [record(1, 6, 3, 0.1)], state="R", hosts=8)
    made = job(ranks)
    told = findings(made)
    assert told[0].ranks == (77,)
    text = screen(made, told)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) < 320
    assert "0-76,78-999" in text


def test_a_thousand_ranks_that_all_do_different_things_fit_too() -> None:
    ranks = [process(rank, 1000, [record(2, rank + 1, 0.5)], hosts=8) for rank in range(1000)]
    text = screen(job(ranks), [])
    assert len(text.splitlines()) <= 40
    assert "... and 984 more rows" in text


def test_one_rank_in_detail() -> None:
    made = job([process(rank, 2, [record(1, 1, 5, 0.25), record(2, 2, 4.0)]) for rank in range(2)])
    text = detail(made, 1)
    assert "Rank 1, host n0, pid 1001: is in seq 2 all_reduce(float32[1024] SUM) of group '0'" in text
    assert "250.00 ms" in text
    assert detail(made, 7) == "Rank 7: nothing was seen of it"


def test_the_same_for_programs() -> None:
    made = job([process(rank, 2, [record(2, 2, 4.0)]) for rank in range(2)])
    data = json.loads(json.dumps(as_data(made, findings(made))))
    assert data["size"] == 2
    assert data["ranks"][1]["open"][0]["op"] == "all_reduce"
    assert data["ranks"][1]["since_s"] == 4.0


def in_world(process: Process, world: str, pid: int) -> Process:
    facts = {**process.facts, "context/1": {**process.facts["context/1"], "world": world}}
    return dataclasses.replace(process, pid=pid, here=True, facts=facts)


def test_several_jobs_are_listed() -> None:
    found = jobs.assemble(
        [in_world(process(0, 1, []), "12345678", 50), in_world(process(0, 1, []), "99", 60)]
    )
    assert [each.name for each in found] == ["12345678", "99"]
    lines = listing(found, [[], [Finding("x")]]).splitlines()
    assert [line.split()[:1] for line in lines] == [["job"], ["12345678"], ["99"]]
    assert [line.endswith("something is wrong") for line in lines] == [False, False, True]


def test_worlds_of_one_program_are_listed_as_such() -> None:
    """Two replicas of two ranks each, whose first ranks have a world of their own."""
    replicas = [
        in_world(process(rank, 2, []), world, pid)
        for world, pids in (("aaaa", (50, 51)), ("bbbb", (60, 61)))
        for rank, pid in enumerate(pids)
    ]
    leaders = [in_world(process(rank, 2, []), "cccc", pid) for rank, pid in enumerate((50, 60))]
    stranger = in_world(process(0, 1, []), "dddd", 70)
    found = jobs.assemble([*replicas, *leaders, stranger])
    text = listing(found, [[]] * 4)
    cells = {line.split()[0]: re.split(r"\s{2,}", line) for line in text.splitlines()[1:5]}
    assert cells["aaaa"][4:] == ["50-51", "cccc", "well"]
    assert cells["bbbb"][4:] == ["60-61", "cccc", "well"]
    assert cells["cccc"][4:] == ["50,60", "aaaa, bbbb", "well"]
    assert cells["dddd"][4:] == ["70", "well"]
    assert "Jobs that share processes are one program" in text


def test_a_process_in_two_worlds_is_a_rank_of_both() -> None:
    both = process(0, 1, [record(1, 1, 1, 0.1), record(2, 1, 1, 0.1, group=5)])
    second = {**both.facts["context/1"], "number": 2, "world": "42"}
    group = {**both.facts["group/1"], "number": 5, "context": 2}
    both = dataclasses.replace(both, facts={**both.facts, "context/2": second, "group/5": group})
    first, other = jobs.assemble([both])
    assert [each.group for each in first.ranks[0].records] == [1]
    assert [each.group for each in other.ranks[0].records] == [5]


def test_the_page_for_a_browser_escapes_what_programs_are_called() -> None:
    made = job([process(rank, 2, [record(2, 2, 4.0)], failure="<b>&") for rank in range(2)])
    text = page(made, findings(made))
    assert "Group &#x27;0&#x27; has failed. Rank 0 reported this error: &lt;b&gt;&amp;" in text
    assert "<td>0-1</td>" in text


def test_a_page_shows_the_first_of_many_findings() -> None:
    made = job([process(0, 1, [])])
    text = page(made, [Finding(f"finding {i}") for i in range(ROWS + 3)])
    assert f"finding {ROWS - 1}<" in text and f"finding {ROWS}<" not in text
    assert "and 3 more" in text


def on_three_hosts(took: float | None, far: int | None) -> Job:
    """Six ranks that make operations which take so long. One of the hosts is far away."""
    rows = [record(1, 1, 30)] if took is None else [record(i, i, 30 - i, took) for i in range(1, 30)]
    made = job([process(rank, 6, rows, hosts=3) for rank in range(6)])
    made.connections = {
        f"n{here}": [
            Connection(
                f"10.0.0.{here}",
                f"10.0.0.{there}",
                20_000_000 if far in (here, there) else 90_000,
                0,
                False,
                5,
            )
            for there in range(3)
            if there != here
        ]
        for here in range(3)
    }
    return made


@pytest.mark.parametrize(("took", "named"), [(0.9, [(4, 5)]), (0.01, [])])
def test_a_host_whose_network_is_slow(took: float, named: list[tuple[int, ...]]) -> None:
    """It is named only if the job spends its time in moving data."""
    assert [each.ranks for each in findings(on_three_hosts(took, far=2))] == named


def test_a_host_whose_network_is_slow_while_all_wait() -> None:
    first, second = findings(on_three_hosts(None, far=1))
    assert first.text.startswith("All ranks have called seq 1 all_reduce")
    assert second.ranks == (2, 3)
    assert second.text.startswith("The network of host n1 is slow: a round trip to host n1 takes ")
    assert "20.00 ms or more" in second.text


def test_a_slow_network_is_not_blamed_while_a_rank_cannot_be_seen() -> None:
    seen = on_three_hosts(None, far=1)
    del seen.ranks[5]
    assert [each.text.endswith("rank 5 has called it.") for each in findings(seen)] == [True]


@pytest.mark.parametrize("slow_looks", [5, 6])
def test_a_slow_network_is_looked_at_several_times(
    slow_looks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = [on_three_hosts(0.9, 1 if look < slow_looks else None) for look in range(10)]
    monkeypatch.setattr(jobs, "jobs", lambda **_: [looks.pop(0)])
    assert status(["--json"]) == (slow_looks == 6)
    assert len(looks) == 4
    told = json.loads(capsys.readouterr().out)["findings"]
    assert [each["ranks"] for each in told] == [[2, 3]] * (slow_looks == 6)


def test_a_frame_is_as_wide_as_the_terminal_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_style, "is_styled", lambda: True)
    monkeypatch.setattr("torch_ucc.status.screen.is_styled", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    ranks = [process(rank, 100, [record(1, 6, 3, 0.1), record(2, 7, 2.5)]) for rank in range(0, 100)]
    for lazy in range(3, 100, 7):
        ranks[lazy] = process(lazy, 100, [record(1, 6, 3, 0.1)], state="R")
    made = job(ranks)
    lines = screen(made, findings(made)).splitlines()
    assert max(len(_style.plain(line)) for line in lines) == 100
    assert {len(_style.plain(line)) for line in lines if line.startswith(("|", "+"))} <= {100, 68}
    accused = [line for line in lines if "not in torch-ucc" in line]
    assert accused
    assert all("\033[31m" in line for line in accused)


def test_stacks_of_all_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the programs that are installed, or what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    text = stacks.all_stacks(17)
    assert "install py-spy" in text
    assert "install eu-stack (package elfutils) or gdb" in text
    for name in ("py-spy", "eu-stack", "gdb"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name}: frames of $*"\n')
        (tmp_path / name).chmod(0o755)
    text = stacks.all_stacks(17)
    assert "by py-spy:\npy-spy: frames of dump --native --pid 17" in text
    assert "by eu-stack:\neu-stack: frames of -p 17" in text
    assert "gdb" not in text
    assert "install" not in text
    (tmp_path / "eu-stack").unlink()
    assert "C frames of all threads, by gdb:\n" in stacks.all_stacks(17)


def test_threads_of_a_process() -> None:
    with subprocess.Popen(["sleep", "100"]) as sleeps:
        text = ""
        while "sleep " not in text or "(sleeping)" not in text:  # it has still to begin
            text = stacks.threads(sleeps.pid)
        sleeps.kill()
    _, row = text.splitlines()
    assert row.split()[:4] == [str(sleeps.pid), "sleep", "S", "(sleeping)"]


def test_status_does_not_wait_for_torch() -> None:
    """It is to answer at once. Torch alone takes seconds to load."""
    code = (
        "import sys; sys.argv[0] = 'torch-ucc'; import torch_ucc.status.__main__; "
        "print({'torch', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
