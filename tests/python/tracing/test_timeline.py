"""The records of all ranks on one clock, and what is told of them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from test_diagnosis import Rank, job
from torch_ucc import _style
from torch_ucc.tracing import chrome, page, text, timeline
from torch_ucc.tracing.clocks import offsets
from torch_ucc.tracing.records import Dump


def on_another_host(dump: Dump, ahead: int) -> Dump:
    """As if recorded by a clock that is `ahead`, and a wall clock that is a millisecond wrong."""
    records = [
        dataclasses.replace(
            record,
            issued_ns=record.issued_ns + ahead,
            posted_ns=record.posted_ns + ahead,
            ended_ns=record.ended_ns + ahead,
        )
        for record in dump.records
    ]
    return dataclasses.replace(
        dump,
        boot_id="another",
        records=records,
        steady_ns=dump.steady_ns + ahead,
        wall_ns=dump.wall_ns + 1_000_000,
    )


def test_the_operations_tell_the_difference_of_the_clocks() -> None:
    ranks = [rank.dump() for rank in job(4)]
    ahead = 123_456_789
    dumps = [*ranks[:2], *(on_another_host(dump, ahead) for dump in ranks[2:])]
    found = offsets(dumps)
    assert (found[0], found[1]) == (0, 0)
    assert found[2] == found[3]
    assert abs(found[2] + ahead) <= 1000  # a call takes a microsecond


def test_without_a_common_operation_the_wall_clocks_do() -> None:
    one, other = (Rank(rank, {"world": (0, 1)}).call("send", peer=1 - rank).dump() for rank in range(2))
    found = offsets([one, on_another_host(other, 500_000_000)])
    assert found[1] == -500_000_000 + 1_000_000


def late_job() -> list[Dump]:
    """Rank 2 comes a millisecond late to the last of four operations."""
    ranks = job(3)
    for rank in ranks:
        late = rank.rank == 2
        rank.call(
            "barrier",
            dtype="",
            elements=0,
            after=1_001_000 if late else 1000,
            takes=1000 if late else 1_001_000,
        )
    return [rank.dump() for rank in ranks]


def test_who_was_late() -> None:
    first = timeline.lateness(timeline.merge(late_job()))[0]
    assert (first.rank, first.times, first.operations, first.waited_ns) == (2, 1, 4, 2_000_000)


def test_uses_add_up() -> None:
    entries = timeline.merge(late_job())
    barrier, reduce = timeline.uses(entries)
    assert (barrier.op, barrier.calls, barrier.ranks, barrier.bytes) == ("barrier", 3, 3, 0)
    assert (reduce.op, reduce.calls, reduce.bytes, reduce.total_ns) == ("all_reduce", 9, 144, 9000)
    assert reduce.issuer.kind == "Python"


def test_the_text_says_so() -> None:
    told = text.report(timeline.merge(late_job()))
    assert "12 operations of 3 ranks in 1 group," in told
    assert any(
        line.split()[:4] == ["rank", "2", "1", "of"] and "2.00 ms" in line for line in told.splitlines()
    )
    assert "lost" not in told and "7 more were lost" in text.report(timeline.merge(late_job()), lost=7)
    assert text.report([]) == "nothing was recorded"


def test_chrome_gets_a_slice_an_operation() -> None:
    events = chrome.convert(timeline.merge(late_job()))["traceEvents"]
    assert sum(each["ph"] == "b" for each in events) == sum(each["ph"] == "e" for each in events) == 12
    starts = {each["id"]: each["ts"] for each in events if each["ph"] == "b"}
    assert all(each["ts"] > starts[each["id"]] for each in events if each["ph"] == "e")
    assert {each["args"]["name"] for each in events if each["ph"] == "M"} >= {
        "rank 0",
        "rank 2",
        "group world",
    }


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "@REPORT@",
        "@DATA@",
        "\\u003c/script>\u2028",
    ],
)
def test_what_a_name_says_stays_data(name: str) -> None:
    """A program chooses the names of its groups and of its own records."""
    dumps = [
        dataclasses.replace(dump, records=[dataclasses.replace(record, op=name) for record in dump.records])
        for dump in late_job()
    ]
    entries = timeline.merge(dumps)
    told = page.render(entries)
    script = told[told.index('type="application/json">') :].split(">", 1)[1].split("</script", 1)[0]
    assert json.loads(script)["ops"] == [name]
    assert "<!--<script>" not in told and "<script>alert" not in told
    assert told.count("<script") == page.render(timeline.merge(late_job())).count("<script")


def test_a_page_has_no_styles_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_style, "is_styled", lambda: True)
    entries = timeline.merge(late_job())
    assert "\033" in text.report(entries) and "\033" not in page.render(entries)


def test_the_page_holds_everything_and_fetches_nothing() -> None:
    entries = timeline.merge(late_job())
    told = page.render(entries)
    assert '["barrier() seq ", " of group world, ", "; 0 B, ucc, completed' in told and "came last" in told
    assert "http" not in told and "src=" not in told and "@" not in told
