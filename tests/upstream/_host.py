"""Runs tests of the suite at a world size. Started by `run.py`, with BACKEND and WORLD_SIZE set.

The suite is imported once, here; each test then runs on ranks forked from this process, which has one thread
and never touches a backend. So a test starts in milliseconds and cannot disturb the next one, whatever it
leaves behind. The ranks run the suite's own `_run`, with its own verdict: an exit status.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, process
from pathlib import Path
from typing import Any

import _lifts

BACKEND = os.environ["BACKEND"]
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
GRACE_S = 5.0
"""How long the other ranks may take to end once one has failed."""


@dataclass
class Result:
    test: str
    backend: str
    world_size: int
    outcome: str = "failed"
    """passed, failed or skipped"""
    reason: str = ""
    seconds: float = 0.0
    ops: list[str] = field(default_factory=list)
    """What reached c10d's dispatcher on any rank; only when asked for."""


def load_suite(init_file: Path, record: bool) -> Any:
    """Import the suite with the lifts in place and return the class whose tests are to be run."""
    os.environ["INIT_METHOD"] = f"file://{init_file}"
    _lifts.apply(BACKEND, WORLD_SIZE)
    from torch.testing._internal.common_distributed import DistTestCases

    for unsupported in DistTestCases.skip_collective.values():
        unsupported.discard(BACKEND)
    for supported in DistTestCases.backend_feature.values():
        supported.add(BACKEND)
    from torch.testing._internal.distributed import distributed_test

    setattr(distributed_test.Barrier, "sync", classmethod(_sync))  # noqa: B010  # mypy: a method

    class TestUpstream(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def run_test(self, test_name: str, parent_pipe: Any) -> None:
            with _recorded_ops() if record else _nothing():
                super().run_test(test_name, parent_pipe)

    return TestUpstream


def _sync(barrier: Any, wait_for: int | None = None, timeout: float | None = None) -> None:
    """The suite's barrier of files, with a shorter pause and without a limit: the test's own limit covers it,
    and 10 s are too few on a loaded machine."""
    import torch.distributed as dist

    expected = wait_for or dist.get_world_size()
    barrier.barrier_id += 1
    folder = Path(os.environ["TEMP_DIR"], "barrier")
    (folder / f"{barrier.barrier_id}.{os.getpid()}").touch()
    while len(list(folder.glob(f"{barrier.barrier_id}.*"))) < expected:
        time.sleep(0.005)


@contextmanager
def _nothing() -> Any:
    yield


@contextmanager
def _recorded_ops() -> Any:
    """Leaves the names of the c10d operations that were dispatched in a file, also when the test exits."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen: set[str] = set()

    class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "c10d":
                tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
                sparse = any(each.layout != torch.strided for each in tensors)
                seen.add(func._schema.name.removeprefix("c10d::") + (":sparse" if sparse else ""))
            return func(*args, **(kwargs or {}))

    try:
        with Recorder():  # type: ignore[no-untyped-call]
            yield
    finally:
        Path(os.environ["TEMP_DIR"], f"ops.{os.getpid()}").write_text("\n".join(seen))


def run_one(suite: Any, name: str, folder: Path, limit_s: float, init_file: Path) -> Result:
    result = Result(name, BACKEND, WORLD_SIZE)
    why = getattr(getattr(suite, name), "__unittest_skip_why__", None)
    if why is not None:
        result.outcome, result.reason = "skipped", why
        return result
    started = time.monotonic()
    init_file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as temp:
        for part in ("barrier", "test_dir", "init_dir"):
            Path(temp, part).mkdir()
        context = multiprocessing.get_context("fork")
        ranks, pipes = [], []
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe()
            started_rank = context.Process(target=_rank_main, args=(suite, name, rank, temp, folder, theirs))
            started_rank.start()
            theirs.close()
            ranks.append(started_rank)
            pipes.append(ours)
        errors = _wait(ranks, pipes, folder, limit_s)
        result.outcome, result.reason = _verdict(ranks, errors, folder)
        result.ops = sorted({op for path in Path(temp).glob("ops.*") for op in path.read_text().split()})
    result.seconds = round(time.monotonic() - started, 2)
    return result


def _rank_main(suite: Any, name: str, rank: int, temp: str, folder: Path, pipe: Any) -> None:
    from torch_ucc.testing import stacks

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a rank does not outlive its host
    output = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stacks.register(folder / f"{rank}.stacks")
    logging.basicConfig(level=logging.INFO)  # the suite logs why it skips
    os.environ["TEMP_DIR"] = temp
    os.environ["RANK"] = str(rank)
    suite._run(rank, name, f"{temp}/init_dir/store", pipe)


def _wait(
    ranks: Sequence[process.BaseProcess], pipes: list[Any], folder: Path, limit_s: float
) -> dict[int, str]:
    """Wait for all ranks and return their errors by rank; what is left at the limit is shown and killed."""
    from torch_ucc.testing import stacks

    errors: dict[int, str] = {}
    deadline, why = time.monotonic() + limit_s, f"not ended after {limit_s:g} s"
    open_pipes = dict(enumerate(pipes))
    while live := {rank: each for rank, each in enumerate(ranks) if each.exitcode is None}:
        failed = [rank for rank, each in enumerate(ranks) if each.exitcode not in (None, 0)]
        if failed and why.startswith("not ended") and time.monotonic() + GRACE_S < deadline:
            deadline, why = (
                time.monotonic() + GRACE_S,
                f"killed {GRACE_S:g} s after rank {failed[0]} had failed",
            )
        left = deadline - time.monotonic()
        if left <= 0:
            if why.startswith("not ended"):
                pids = {each.pid or 0: rank for rank, each in live.items()}
                python = stacks.python_stacks({pid: folder / f"{rank}.stacks" for pid, rank in pids.items()})
                native = stacks.native_stacks(pids)
                text = [f"==== rank {rank}\n{python[pid]}\n{native[pid]}" for pid, rank in pids.items()]
                (folder / "stacks.txt").write_text("\n".join(text))
            for rank, each in live.items():
                each.kill()
                each.join()
                errors.setdefault(rank, why)
            break
        sentinels = [each.sentinel for each in live.values()]
        connection.wait([*sentinels, *open_pipes.values()], timeout=min(left, 1.0))
        _read(open_pipes, errors)
    _read(open_pipes, errors)
    for pipe in pipes:
        pipe.close()
    return errors


def _read(open_pipes: dict[int, Any], errors: dict[int, str]) -> None:
    for rank, pipe in list(open_pipes.items()):
        try:
            while pipe.poll():
                errors[rank] = pipe.recv()
        except (EOFError, OSError):
            del open_pipes[rank]


def _verdict(ranks: Sequence[process.BaseProcess], errors: dict[int, str], folder: Path) -> tuple[str, str]:
    """The suite's rule: a skip is an exit status of its own; all else but 0 is a failure."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    messages = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    del messages[TEST_SKIPS["backend_unavailable"].exit_code]  # the one that is asked for must be there
    codes = [each.exitcode for each in ranks]
    if not errors and all(code == 0 for code in codes):
        return "passed", ""
    skips = [code for code in codes if code in messages]
    if not errors and skips and all(code == 0 or code in messages for code in codes):
        said = re.search(r"for following reason: (.*)", (folder / "0.log").read_text(errors="replace"))
        return "skipped", said.group(1) if said else messages[skips[0]]
    for rank, code in enumerate(codes):
        if code not in (0, 10) and code not in messages:  # 10: raised, and sent its traceback
            printed = (folder / f"{rank}.log").read_text(errors="replace").strip().splitlines()[-20:]
            errors.setdefault(rank, "\n".join([f"ended with {code}", *printed]))
    return "failed", "\n".join(f"rank {rank}: {text.strip()}" for rank, text in sorted(errors.items()))


def main() -> None:
    """Reads what to do as JSON from stdin, prints one JSON line for each test as it ends."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as temp:
        init_file = Path(temp, "init")
        suite = load_suite(init_file, job["record"])
        names = sorted(
            name for name in dir(suite) if name.startswith("test") and callable(getattr(suite, name))
        )
        wanted = names if job["tests"] is None else job["tests"]
        unknown = sorted(set(wanted) - set(names))
        for name in [each for each in wanted if each in names and re.search(job["pattern"], each)]:
            if name in job["done"]:
                continue
            folder = Path(job["logs"], name)
            folder.mkdir(parents=True, exist_ok=True)
            print(json.dumps(asdict(run_one(suite, name, folder, job["limit_s"], init_file))), flush=True)
        unused = [lift.reason for lift in _lifts.LIFTS if not lift.used]
        print(json.dumps({"unknown": unknown, "unused_lifts": unused, "tests": names}), flush=True)


if __name__ == "__main__":
    main()
