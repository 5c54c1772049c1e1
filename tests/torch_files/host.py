"""Runs the tests of one file. Started by `__main__.py`, which names them on stdin.

The file is imported once, here. Each test then runs in a process forked from this one, which leads a process
group of its own and forks or spawns the ranks. At its end, or its limit, the whole process group is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import importlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch_files import adapt

GPU = re.compile(
    r"(?i)\b(need|require)s? .*\b(gpus?|cuda)\b|gpus? .*needed|cuda is not available|not enough cuda"
)


@dataclass
class Result:
    file: str
    test: str
    outcome: str = "failed"
    """passed, failed or skipped"""
    reason: str = ""
    seconds: float = 0.0
    ucc: bool = False
    """Whether a group of ucc was made."""
    stacks: str = ""
    """Of every process of a test that did not end."""


def tests_of(module: Any) -> Iterator[tuple[str, type[unittest.TestCase], str]]:
    for cls in vars(module).values():
        if isinstance(cls, type) and issubclass(cls, unittest.TestCase) and cls.__module__ == module.__name__:
            for name in unittest.defaultTestLoader.getTestCaseNames(cls):
                yield f"{cls.__name__}.{name}", cls, name


def run_one(result: Result, cls: type[unittest.TestCase], name: str, folder: Path, limit_s: float) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    began = time.monotonic()
    os.environ[adapt.MARKS] = str(folder)
    pid = os.fork()
    if pid == 0:
        _run_and_exit(cls, name, folder)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)
    try:
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() - began > limit_s:
                result.reason = f"not ended after {limit_s:g} s"
                result.stacks = _stacks_below(pid, folder)
                break
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    result.seconds = round(time.monotonic() - began, 2)
    result.ucc = (folder / adapt.USED).exists()
    verdict = folder / "verdict.json"
    if result.reason:
        return
    if not verdict.exists():
        result.reason = f"ended with {os.waitstatus_to_exitcode(status)}\n{_log(folder)[-2000:]}"
        return
    said = json.loads(verdict.read_text())
    result.outcome, result.reason = said["outcome"], said["reason"]
    if result.outcome == "skipped":
        more = re.search(r"skipping test \S+ for following reason: (.*)", _log(folder))
        result.reason = more.group(1) if more else result.reason


def _log(folder: Path) -> str:
    return (folder / "log").read_text(errors="replace")


def _run_and_exit(cls: type[unittest.TestCase], name: str, folder: Path) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test does not outlive its host
        output = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for ours, standard in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(ours, standard)
        os.chdir(folder)
        result = unittest.TestResult()
        unittest.TestSuite([cls(name)]).run(result)
        outcome, reason = "passed", ""
        if wrong := [text for _, text in [*result.errors, *result.failures]]:
            outcome, reason = "failed", "\n".join(wrong)
        elif result.skipped:
            outcome, reason = "skipped", result.skipped[0][1]
        elif result.unexpectedSuccesses:
            outcome, reason = "failed", "torch expects this test to fail, and it passed"
        sys.stdout.flush()
        (folder / "verdict.new").write_text(json.dumps({"outcome": outcome, "reason": reason}))
        (folder / "verdict.new").rename(folder / "verdict.json")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _stacks_below(pid: int, folder: Path) -> str:
    """The stacks of the test's process and of all below it."""
    from torch_ucc.testing import stacks

    pids = [pid, *stacks.descendants(pid)]
    python = stacks.python_stacks({each: folder / f"{each}.stacks" for each in pids})
    native = stacks.native_stacks(pids)
    parts = []
    for each in pids:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{each}/cmdline").read_text().replace("\0", " ")[:150]
            parts.append(f"==== process {each}: {command}\n{python[each]}\n{native[each]}")
    return "\n".join(parts)


def main() -> None:
    """Reads what to do as JSON from stdin, prints one JSON line for each test as it ends."""
    job: dict[str, Any] = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an import prints is no answer
    file, logs = job["file"], Path(job["logs"])
    logs.mkdir(parents=True, exist_ok=True)
    adapt.apply()
    logging.getLogger("torch.testing._internal.common_distributed").setLevel(logging.INFO)
    try:
        module = importlib.import_module(file)
    except BaseException:
        reason = f"the file cannot be imported\n{traceback.format_exc()}"
        print(json.dumps(asdict(Result(file, "(import)", reason=reason))), file=answers, flush=True)
        return
    for test, cls, name in tests_of(module):
        if not re.search(job["pattern"], test):
            continue
        result = Result(file, test)
        why = next((why for tests, why in job["skips"] if fnmatch.fnmatchcase(test, tests)), None)
        declared: str | None = getattr(getattr(cls, name), "__unittest_skip_why__", None)
        declared = declared or getattr(cls, "__unittest_skip_why__", None)
        if why is not None or declared is not None:
            result.outcome, result.reason = "skipped", why or declared or ""
        else:
            run_one(result, cls, name, logs / test, job["limit_s"])
        if result.outcome == "skipped" and GPU.search(result.reason):
            result.reason = "needs a GPU"
        print(json.dumps(asdict(result)), file=answers, flush=True)


if __name__ == "__main__":
    main()
