"""The tracer misses no operation that the recorder was just writing when it looked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_ucc._native import extension
from torch_ucc.tracing.tracer import Tracer


class Recorder:
    """Answers one look after the other: the last id, and those that can be read, each with its end."""

    def __init__(self, *looks: tuple[int, dict[int, int]], capacity: int = 8) -> None:
        self._looks = list(looks)
        self._capacity = capacity
        self.asked: list[int] = []

    def record_sites(self, on: bool) -> None:
        pass

    def flight_recorder(self, reason: str = "", since: int = 1) -> str:
        self.asked.append(since)
        last, ends = self._looks.pop(0)
        records = [{"id": number, "ended_ns": end} for number, end in ends.items() if number >= since]
        first = max(1, last - self._capacity + 1)
        return json.dumps({"rank": 0, "first_id": first, "last_id": last, "records": records})


def traced(recorder: Recorder, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(extension, "compiled", lambda: recorder)
    monkeypatch.setattr(Tracer, "_run", lambda self: None)
    tracer = Tracer(path / "run.json")
    tracer.start()
    for _ in range(len(recorder._looks) - 1):
        tracer._take()
    tracer.stop()
    data: dict[str, Any] = json.loads((path / "run.rank0.json").read_text())
    return {"ids": [each["id"] for each in data["records"]], "lost": data["lost"]}


def test_one_that_was_just_being_written_is_read_by_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder((5, {}), (8, {6: 60, 8: 80}), (9, {6: 60, 7: 70, 8: 80, 9: 90}))
    assert traced(recorder, tmp_path, monkeypatch) == {"ids": [6, 7, 8, 9], "lost": 0}
    assert recorder.asked[1:] == [6, 7]


def test_one_that_is_not_over_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder((0, {}), (3, {1: 10, 2: 0, 3: 30}), (3, {1: 10, 2: 20, 3: 30}))
    assert traced(recorder, tmp_path, monkeypatch) == {"ids": [1, 2, 3], "lost": 0}
    assert recorder.asked[1:] == [1, 2]


def test_what_the_ring_no_longer_holds_is_counted_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {number: 10 * number for number in range(13, 21)}
    recorder = Recorder((0, {}), (20, later), (22, {**later, 21: 210, 22: 220}))
    assert traced(recorder, tmp_path, monkeypatch) == {"ids": list(range(13, 23)), "lost": 12}
    assert recorder.asked[1:] == [1, 21]
