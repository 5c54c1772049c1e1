"""Run a function, or a script, on several ranks that are real processes, under a hard limit.

    from torch_ucc.testing import run_ranks

    def total() -> float:
        x = torch.ones(4) * dist.get_rank()
        dist.all_reduce(x)
        return float(x[0])

    assert run_ranks(total, 2) == [1.0, 1.0]

If ranks do not end within the limit, `run_ranks` prints the Python and C stacks of each of them to stderr and
kills them. The RankError that it raises lists these ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, forkserver, process
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from torch_ucc.testing import stacks

_now = time.monotonic
PR_SET_PDEATHSIG = 1
_START = datetime.timedelta(seconds=60)
"""Processes may take so long until all of them create the default group."""


class RankError(Exception):
    """At least one rank raised an error, died or did not end.

    `errors` maps a rank to its error, or to how it died. `unended` lists the ranks that did not end and were
    killed. The `__cause__` is the exception of the rank that failed first, if it can be pickled. A rank that
    died without an exception counts as the first to fail; there is no cause then.
    """

    def __init__(self, errors: Mapping[int, str], unended: Sequence[int], why: str) -> None:
        self.errors = dict(errors)
        self.unended = list(unended)
        parts = [f"rank {rank}: {text.rstrip()}" for rank, text in self.errors.items()]
        if self.unended:
            parts.append(f"ranks that had not ended {why}: {', '.join(map(str, self.unended))}")
        super().__init__("\n".join(parts))


class ScriptError(Exception):
    """A script ended with a status other than 0, or did not end.

    `output` is what the script printed. If it did not end, the stacks of its processes follow.
    """

    def __init__(self, why: str, output: str) -> None:
        self.output = output
        super().__init__(f"{why}\n{output}")


@dataclass(frozen=True)
class Launch:
    """What each rank is told. The call travels pickled, so that a rank unpickles it, and fails by it."""

    call: bytes
    env: Mapping[str, str]
    backend: str
    init: bool
    group_timeout: float
    folder: Path


@dataclass(frozen=True)
class Rank:
    rank: int
    process: process.BaseProcess
    folder: Path

    @property
    def pid(self) -> int:
        assert self.process.pid is not None, "started"
        return self.process.pid

    def file(self, kind: str) -> Path:
        return _file(self.folder, self.rank, kind)

    def ended_at(self) -> float:
        """When the result was left, for the order of failures; a rank without one died, and comes first."""
        result = self.file("result")
        return result.stat().st_mtime if result.exists() else 0.0

    def verdict(self) -> tuple[str | None, Any]:
        """What went wrong (None: nothing) and the value, or the exception where there is one."""
        try:
            outcome, text, value = pickle.loads(self.file("result").read_bytes())
        except FileNotFoundError:
            return f"ended with {_exit_text(self.process.exitcode)} and left no result", None
        if outcome == "raised":
            return text, pickle.loads(value) if value else None
        if self.process.exitcode != 0:
            return f"had returned, then ended with {_exit_text(self.process.exitcode)}", None
        return None, value


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    backend: str = "ucc",
    timeout: float = 60.0,
    init: bool = True,
    group_timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    rank_env: Sequence[Mapping[str, str]] | None = None,
    grace: float = 5.0,
) -> list[Any]:
    """Call `fn(*args)` on `world_size` ranks and return their values, in the order of ranks.

    Each rank is a process with RANK, WORLD_SIZE, LOCAL_RANK and MASTER_* set. When `fn` runs, the default
    group exists, over `backend`. With `init=False`, `fn` calls init_process_group() itself. The process of
    the caller serves the store, on a free port. A rank imports `fn` by its module and name; `args` and the
    values are pickled. `env` sets variables for all ranks, and `rank_env[i]` for rank i, in addition to the
    environment of the caller.

    All ranks must end within `timeout` seconds, which include their start. `group_timeout` is the timeout of
    the default group, by default `timeout`. When a rank has failed, the others must end within `grace`
    seconds.

    Raises `RankError`. When all ranks have ended, their output goes to the stdout of the caller. Each line
    begins with the rank.
    """
    if rank_env is not None and len(rank_env) != world_size:
        raise ValueError(f"rank_env has {len(rank_env)} entries for {world_size} ranks")
    call = pickle.dumps((fn, args))
    store = dist.TCPStore(  # type: ignore[attr-defined]  # public, but its stubs do not export it
        "127.0.0.1", 0, is_master=True, wait_for_workers=False
    )
    common = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # env:// then makes rank 0 a client of ours too
        **(env or {}),
    }
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        context = fork_context()
        ranks = []
        try:
            for rank in range(world_size):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **(rank_env[rank] if rank_env else {})}
                launch = Launch(call, {**common, **own}, backend, init, group_timeout or timeout, folder)
                started = context.Process(target=rank_main, args=(launch, rank), name=f"rank-{rank}")
                started.start()
                ranks.append(Rank(rank, started, folder))
            unended, why = wait_for(ranks, timeout, grace)
            if unended:
                print_stacks(unended, why)
        finally:
            kill_all(ranks)
            for each in ranks:
                forward_output(each)
        return values_of(ranks, unended, why)


def fork_context() -> multiprocessing.context.ForkServerContext:
    """Ranks come from a server process that has only imported torch: as clean as spawned ones, without the
    second that each import costs. It has one thread, so forking it is safe."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # read when OpenMP and BLAS are loaded, which the server does
    try:
        context = multiprocessing.get_context("forkserver")
        preload = [
            "torch",
            "torch.distributed",
            "torch._dynamo",
            "torch_ucc.testing",
            "torch_ucc.testing.freeze",
        ]
        context.set_forkserver_preload(preload)
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return context


def rank_main(launch: Launch, rank: int) -> None:
    """A rank's whole life. One that fails leaves at once: what it would do on the way out could hang."""
    output = os.open(_file(launch.folder, rank, "output"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    stacks.register(_file(launch.folder, rank, "stacks"))
    # A rank never outlives the server, nor the server the caller, however the caller ended.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(launch.env)
    torch.set_num_threads(1)
    # Read at import, which was before the environment was this rank's.
    dist.set_debug_level_from_env()  # type: ignore[attr-defined]  # public, but its stubs do not export it
    try:
        fn, args = pickle.loads(launch.call)
        if launch.init:
            _create_group(launch)
        result = pickle.dumps(("returned", "", fn(*args)))
        if dist.is_initialized():
            dist.destroy_process_group()
        _save(launch.folder, rank, result)
    except BaseException as error:
        _save(launch.folder, rank, pickle.dumps(("raised", traceback.format_exc(), _pickled(error))))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    # multiprocessing would end the rank without its exit handlers and destructors, which are under test, too.
    ctypes.pythonapi.Py_Exit(0)


def _create_group(launch: Launch) -> None:
    """The default group. A short timeout is for its operations: ranks may start at very different times."""
    timeout = datetime.timedelta(seconds=launch.group_timeout)
    dist.init_process_group(launch.backend, timeout=max(timeout, _START))
    if timeout < _START:
        group = dist.distributed_c10d._get_default_group()
        for device in group._device_types:
            group._get_backend(device)._set_default_timeout(timeout)


def _pickled(error: BaseException) -> bytes | None:
    """The exception in a form that is known to come back."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # whatever a user's __reduce__ or __init__ raises
        return None
    return data


def _save(folder: Path, rank: int, result: bytes) -> None:
    partial = _file(folder, rank, "partial")
    partial.write_bytes(result)
    partial.rename(_file(folder, rank, "result"))


def _file(folder: Path, rank: int, kind: str) -> Path:
    return folder / f"{rank}.{kind}"


def wait_for(ranks: Sequence[Rank], timeout: float, grace: float) -> tuple[list[Rank], str]:
    """Wait until all have ended or time is up; return the ranks that have not ended and what ran out."""
    deadline, why = _now() + timeout, f"after {timeout:g} s"
    shortened = False
    while live := [each for each in ranks if each.process.exitcode is None]:
        failed = [each.rank for each in ranks if each not in live and each.process.exitcode != 0]
        if failed and not shortened and _now() + grace < deadline:
            deadline, why = _now() + grace, f"{grace:g} s after rank {failed[0]} failed"
            shortened = True
        left = deadline - _now()
        if left <= 0:
            break
        connection.wait([each.process.sentinel for each in live], timeout=min(left, 0.2))
    return live, why


def print_stacks(unended: Sequence[Rank], why: str) -> None:
    """On stderr, at once: should the caller be killed too, this much has been said."""
    names = {each.pid: f"rank {each.rank} (pid {each.pid}), not ended {why}" for each in unended}
    python = stacks.python_stacks({each.pid: each.file("stacks") for each in unended})
    native = stacks.native_stacks(names)
    for pid, name in names.items():
        print(f"==== {name}: Python stacks\n{python[pid]}", file=sys.stderr)
        print(f"==== {name}: C stacks\n{native[pid]}", file=sys.stderr, flush=True)


def kill_all(ranks: Sequence[Rank]) -> None:
    for each in ranks:
        if each.process.exitcode is None:
            stacks.kill([*stacks.descendants(each.pid), each.pid])
        each.process.join(10.0)


def forward_output(each: Rank) -> None:
    output = each.file("output")
    for line in output.read_text(errors="replace").splitlines() if output.exists() else ():
        print(f"[{each.rank}] {line}")


def values_of(ranks: Sequence[Rank], unended: Sequence[Rank], why: str) -> list[Any]:
    verdicts = {each.rank: each.verdict() for each in ranks if each not in unended}
    first_failed = sorted(ranks, key=Rank.ended_at)
    errors = {each.rank: wrong for each in first_failed if (wrong := verdicts.get(each.rank, (None,))[0])}
    if errors or unended:
        cause = verdicts[next(iter(errors))][1] if errors else None
        raise RankError(errors, [each.rank for each in unended], why) from cause
    return [value for _, value in verdicts.values()]


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def run_script(
    script: Path | str,
    nproc: int,
    *args: str,
    launcher: str = "torchrun",
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a script on `nproc` ranks, and return all that it and the launcher print.

    `script` is the path of the script, or its code. `launcher` is "torchrun", or "python" for one rank
    without a launcher. `args` are the arguments of the script. `env` sets variables in addition to the
    environment of the caller, and `cwd` is the working directory. Raises `ScriptError` if the script ends
    with a status other than 0, or does not end within `timeout` seconds; then all its processes are killed.
    """
    with tempfile.TemporaryDirectory(prefix="script-") as name:
        folder = Path(name)
        path = script if isinstance(script, Path) else folder / "script.py"
        if isinstance(script, str):
            path.write_text(script)
        output = folder / "output"
        with output.open("wb") as sink:  # a file: a pipe would wait for every process that holds it
            launched = subprocess.Popen(
                [*_launch(launcher, nproc), str(path), *args],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **(env or {})},
                cwd=cwd,
            )
        deadline = _now() + timeout
        try:
            while launched.poll() is None:
                if _now() >= deadline:
                    _fail_stuck(launched, output, timeout)
                time.sleep(0.05)
        finally:
            if launched.poll() is None:
                stacks.kill([*stacks.descendants(launched.pid), launched.pid])
                launched.wait()
        text = output.read_text(errors="replace")
    if launched.returncode != 0:
        raise ScriptError(f"{path.name} ended with {_exit_text(launched.returncode)}", text)
    return text


def _launch(launcher: str, nproc: int) -> list[str]:
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    if launcher == "python" and nproc == 1:
        return [sys.executable]
    raise ValueError(f"no launcher {launcher!r} for {nproc} ranks")


def _fail_stuck(launched: subprocess.Popen[bytes], output: Path, timeout: float) -> NoReturn:
    """Collect the stacks of the script's processes, kill them, raise.

    They carry no handler of ours, so Python stacks come from the interpreter's own handler of SIGABRT, into
    the output. The launcher is stopped first: it would answer the death of one rank by ending the others.
    """
    below = stacks.descendants(launched.pid)
    if below:
        stacks.kill([launched.pid], signal.SIGSTOP)
    stuck = below or [launched.pid]
    native = stacks.native_stacks(stuck)
    for pid in stuck:  # one by one, so that their stacks do not mix
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        stacks.kill([pid], signal.SIGABRT)
        bound = time.monotonic() + 10.0
        while not stacks.ended(pid) and time.monotonic() < bound:
            time.sleep(0.02)
    stacks.kill([*stuck, launched.pid])
    launched.wait()
    shown = "".join(f"==== pid {pid}: C stacks\n{text}\n" for pid, text in native.items())
    raise ScriptError(f"did not end within {timeout:g} s", output.read_text(errors="replace") + shown)
