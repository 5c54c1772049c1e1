"""`torch-ucc record` keeps what ranks do that start later, or again, and all contexts of a process.

The ranks are processes that have the memory of a recorder, and do nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from torch_ucc.status import history, segment
from torch_ucc.status.history import Recorder, by_job, processes
from torch_ucc.status.meter import PrometheusFile
from torch_ucc.tracing import records

RING = 256
"""Operations that a recorder holds."""

RANK = """
import os, sys
content = bytearray(open(sys.argv[1], "rb").read())
content[16:24] = os.getpid().to_bytes(8, "little")
os.write(os.memfd_create("torch-ucc-recorder"), content)
print(flush=True)
sys.stdin.read()
"""

LAUNCHER = """
import os, subprocess, sys
ranks = {}
for line in sys.stdin:
    what, argument = line.split()
    if what == "start":
        command = [sys.executable, "-S", "-c", sys.argv[1], argument]
        rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        rank.stdout.readline()
        ranks[rank.pid] = rank
        print(rank.pid, flush=True)
    else:
        rank = ranks.pop(int(argument))
        rank.communicate()
        print(flush=True)
for rank in ranks.values():
    rank.communicate()
"""


class Launcher:
    """A process that starts ranks."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        command = [sys.executable, "-S", "-c", LAUNCHER, RANK]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def start(self, *contexts: dict[str, Any], program: str = "train.py", calls: int = 3) -> int:
        """A rank that has called so many operations in each context. Returns its pid."""
        file = self._folder / "memory"
        file.write_bytes(memory(contexts, program, calls))
        return int(self._ask(f"start {file}"))

    def end(self, pid: int) -> None:
        self._ask(f"end {pid}")

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


def context(world: str, rank: int, size: int, number: int = 1) -> dict[str, Any]:
    hosts = [{"name": "n", "ranks": f"0-{size - 1}"}]
    return {
        "number": number,
        "world": world,
        "rank": rank,
        "size": size,
        "host": 0,
        "hosts": hosts,
        "doors": [],
    }


def memory(contexts: tuple[dict[str, Any], ...], program: str, calls: int) -> bytes:
    """What a recorder holds (cpp/trace/flight_recorder.h). Each context has one group, of the same name."""
    facts: dict[str, Any] = {"names": {"1": "all_reduce", "2": "float32"}, "process": {"program": program}}
    slots, last = {}, 0
    for each in contexts:
        number = each["number"]
        facts[f"context/{number}"] = each
        ranks = f"0-{each['size'] - 1}"
        facts[f"group/{number}"] = {
            "number": number,
            "name": "0",
            "rank": each["rank"],
            "ranks": ranks,
            "closed": False,
            "failure": "",
            "errors": {},
            "context": number,
        }
        for seq in range(1, calls + 1):
            last += 1
            slots[last % RING] = slot(last, number, seq)
    journal = "".join(f"{key}\t{json.dumps(fact)}\n" for key, fact in facts.items()).encode()
    ring = b"".join(slots.get(i, bytes(segment._SLOT.size)) for i in range(RING))
    at = segment._SLOTS + len(ring)
    head = segment._HEAD.pack(0, segment.FORMAT, 0, RING, at, 1 << 16, last)
    text = segment._JOURNAL.pack(2, len(journal)) + journal
    return (head.ljust(segment._SLOTS, b"\0") + ring + text).ljust(at + (1 << 16), b"\0")


def slot(number: int, group: int, seq: int) -> bytes:
    """An all_reduce of 4 bytes that took a microsecond."""
    began, ended = 1000 * number, 1000 * number + 1000
    happened = 1 << 63
    times = (happened | began << 4, happened | began << 4, happened | ended << 4)
    what = (1, 2, 0)
    amounts = (1, 1, 4, began)
    return segment._SLOT.pack(2 * number, *times, seq, *what, *amounts, group, 0, -1, -1, 0, 0, 1, 0)


@contextlib.contextmanager
def launcher(folder: Path, **environment: str) -> Iterator[Launcher]:
    made = Launcher(folder, **environment)
    try:
        yield made
    finally:
        made.close()


def recorder_of(pid: int, folder: Path, *meters: PrometheusFile) -> Recorder:
    """One that has begun with the job of this process."""
    (members,) = [each for each in by_job(list(processes())) if pid in {member.pid for member in each}]
    made = Recorder(folder, 1 << 20, meters)
    made.add(members)
    made.look()
    return made


def kept(folder: Path) -> dict[int, int]:
    """By rank: how many operations its file holds."""
    return {dump.rank: len(dump.records) for dump in records.load(folder)}


def test_a_rank_that_starts_later_is_recorded(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours, launcher(tmp_path) as theirs:
        recorder = recorder_of(ours.start(context("wa", 0, 3)), tmp_path)
        ours.start(context("wa", 1, 3), calls=5)
        theirs.start(context("wa", 2, 3), calls=7)
        recorder.search()
        recorder.look()
        recorder.close()
    assert kept(tmp_path) == {0: 3, 1: 5, 2: 7}


def test_ranks_of_another_job_are_not(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours, launcher(tmp_path) as theirs:
        recorder = recorder_of(ours.start(context("wb", 0, 1)), tmp_path)
        theirs.start(context("wc", 0, 1))
        ours.start(context("wd", 1, 2), program="evaluate.py")
        recorder.search()
        recorder.close()
    assert kept(tmp_path) == {0: 3}
    assert not (tmp_path / "2").exists()


def test_each_start_of_a_job_has_its_folder(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours:
        first = [ours.start(context("we", rank, 2)) for rank in range(2)]
        recorder = recorder_of(first[0], tmp_path)
        for pid in first:
            ours.end(pid)
        recorder.look()
        assert not recorder.writers
        for calls, world, size in ((4, "wf", 1), (5, "wg", 2)):
            again = [ours.start(context(world, rank, size), calls=calls) for rank in range(size)]
            recorder.search()
            recorder.look()
            for pid in again:
                ours.end(pid)
            recorder.look()
        recorder.close()
    assert kept(tmp_path) == {0: 3, 1: 3}
    assert kept(tmp_path / "2") == {0: 4}
    assert kept(tmp_path / "3") == {0: 5, 1: 5}


def test_ranks_that_share_no_group_are_one_start_if_another_rank_joins_them(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours:
        recorder = recorder_of(ours.start(context("wn", 0, 1)), tmp_path)
        for rank, worlds in ((0, ["wo"]), (1, ["wp"]), (2, ["wo", "wp"])):
            ours.start(*(context(world, rank, 3, number=n) for n, world in enumerate(worlds, 1)))
        recorder.search()
        recorder.look()
        recorder.close()
    assert kept(tmp_path) == {0: 3}
    assert kept(tmp_path / "2") == {0: 3, 1: 3, 2: 6}


def test_a_start_after_a_replacement_has_a_folder_of_its_own(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours:
        goes = ours.start(context("wq", 0, 1))
        recorder = recorder_of(goes, tmp_path)
        for calls, worlds in ((4, ["wq", "wr"]), (5, ["ws"])):
            ours.end(goes)
            recorder.look()
            goes = ours.start(
                *(context(each, 0, 1, number=n) for n, each in enumerate(worlds, 1)), calls=calls
            )
            recorder.search()
            recorder.look()
        ours.start(context("ws", 1, 2))
        recorder.search()
        recorder.look()
        recorder.close()
    assert kept(tmp_path) == {0: 3}
    assert kept(tmp_path / "2") == {0: 8}
    assert kept(tmp_path / "3") == {0: 5, 1: 3}


def test_a_rank_in_place_of_one_that_has_ended_does_not_overwrite_its_file(tmp_path: Path) -> None:
    """The other ranks go on in the next world."""
    with launcher(tmp_path) as ours:
        stays = ours.start(context("wh", 0, 2), context("wi", 0, 2, number=2))
        goes = ours.start(context("wh", 1, 2))
        recorder = recorder_of(stays, tmp_path)
        ours.end(goes)
        recorder.look()
        ours.start(context("wi", 1, 2), calls=5)
        recorder.search()
        recorder.look()
        recorder.close()
    assert kept(tmp_path) == {0: 6, 1: 3}
    assert kept(tmp_path / "2") == {1: 5}


def test_all_contexts_of_a_process_are_kept_and_counted(tmp_path: Path) -> None:
    with launcher(tmp_path) as ours:
        pid = ours.start(context("wj", 0, 1), context("wk", 0, 1, number=2), calls=4)
        meter = PrometheusFile(tmp_path / "ucc.prom")
        recorder_of(pid, tmp_path, meter).close()
    (dump,) = records.load(tmp_path)
    assert sorted(group.name for group in dump.groups.values()) == ["0", "0 (2)"]
    assert [(record.group, record.seq) for record in dump.records] == [
        (group, seq) for group in (1, 2) for seq in (1, 2, 3, 4)
    ]
    assert "torch_ucc_operation_seconds_count{" in meter.text()
    (count,) = [line.split()[-1] for line in meter.text().splitlines() if "seconds_count{" in line]
    assert count == "8"


@pytest.mark.parametrize("by_torchrun", [False, True])
def test_the_recording_lasts_as_long_as_ranks_may_start_again(tmp_path: Path, by_torchrun: bool) -> None:
    environment = {"TORCHELASTIC_RUN_ID": "none"} if by_torchrun else {}
    with launcher(tmp_path, **environment) as ours:
        pid = ours.start(context("wl", 0, 1))
        recorder = recorder_of(pid, tmp_path)
        assert recorder.may_go_on()
        ours.end(pid)
        recorder.look()
        assert recorder.may_go_on() == by_torchrun
    assert not recorder.may_go_on()
    recorder.close()


def test_the_command_names_a_job_by_world_or_pid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with launcher(tmp_path) as ours:
        one = ours.start(context("123456789", 0, 1), context("2345678901", 0, 1, number=2))
        ours.start(context("345678901", 0, 1))
        assert history.main([str(tmp_path / "a"), str(one), "--seconds", "0.01"]) == 0
        assert f"writes rank 0 to {tmp_path / 'a'}" in capsys.readouterr().err
        assert history.main([str(tmp_path / "b"), "34567890", "--seconds", "0.01"]) == 0
        assert history.main([str(tmp_path / "c"), "3456", "--seconds", "0.01"]) == 2
        assert "no such job" in capsys.readouterr().err
        assert history.main([str(tmp_path / "c"), "--seconds", "0.01"]) == 2
        assert "several jobs run" in capsys.readouterr().err
    assert kept(tmp_path / "a") == {0: 6} and kept(tmp_path / "b") == {0: 3}


def export(folder: Path, **environment: str) -> str:
    """Record a rank that has made nine calls, with `--opentelemetry`; return what the command prints."""
    with launcher(folder) as ours:
        pid = ours.start(context("wm", 0, 1), calls=9)
        command = [sys.executable, "-m", "torch_ucc", "record", str(folder / "run"), str(pid)]
        done = subprocess.run(
            [*command, "--opentelemetry", "--seconds", "0.01"],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
    return done.stdout


def test_the_console_exporter_of_opentelemetry_prints_the_counts(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is missing")
    printed = export(tmp_path, OTEL_METRICS_EXPORTER="console")
    (scope,) = json.loads(printed)["resource_metrics"][0]["scope_metrics"]
    assert scope["scope"]["name"] == "torch_ucc"
    counts = {each["name"]: each["data"]["data_points"] for each in scope["metrics"]}
    assert [each["count"] for each in counts["torch_ucc_operation_seconds"]] == [9]
    assert [each["value"] for each in counts["torch_ucc_operation_bytes"]] == [36]


class Collector(BaseHTTPRequestHandler):
    """Receives OTLP over HTTP; keeps what was posted."""

    posted: ClassVar[list[tuple[str, bytes]]] = []

    def do_POST(self) -> None:
        self.posted.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_collector_gets_the_counts_over_otlp(tmp_path: Path) -> None:
    metrics = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        reason="opentelemetry-exporter-otlp-proto-http is missing",
    )
    Collector.posted.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            export(
                tmp_path,
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{server.server_port}",
                OTEL_RESOURCE_ATTRIBUTES="job=test",
                NO_PROXY="127.0.0.1",
            )
        finally:
            server.shutdown()
            serving.join()
    path, body = Collector.posted[-1]
    assert path == "/v1/metrics"
    (resource,) = metrics.ExportMetricsServiceRequest.FromString(body).resource_metrics
    assert "test" in [each.value.string_value for each in resource.resource.attributes if each.key == "job"]
    (scope,) = resource.scope_metrics
    counts = {each.name: each for each in scope.metrics}
    assert [each.count for each in counts["torch_ucc_operation_seconds"].histogram.data_points] == [9]
    assert [each.as_int for each in counts["torch_ucc_operation_bytes"].sum.data_points] == [36]
