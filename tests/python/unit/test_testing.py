"""`torch_ucc.testing` itself, over gloo: values, failures, and the limit.

No test waits for a real limit to pass. Where one must strike, the clock is moved forward once the ranks have
reached the state under test, and the limit is far beyond what a loaded machine needs to get there.
"""

import atexit
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch_ucc.testing import RankError, ScriptError, run_ranks, run_script, running, stacks

FAR = 600.0


def all_reduced(scale: float) -> tuple[int, float]:
    x = torch.full((4,), scale * (dist.get_rank() + 1))
    dist.all_reduce(x)
    return dist.get_rank(), float(x[0])


def facts(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def state() -> tuple[bool, int]:
    return dist.is_initialized(), torch.get_num_threads()


def own_group() -> str:
    dist.init_process_group("gloo")
    dist.barrier()
    return dist.get_backend()


def raise_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise KeyError("the reason")
    dist.barrier()


class UnpicklableError(Exception):
    def __reduce__(self) -> str:
        raise TypeError("not this one")


def raise_unpicklable() -> None:
    raise UnpicklableError("told as text")


def exit_on(rank: int) -> int:
    if int(os.environ["RANK"]) == rank:
        os._exit(7)
    return rank


def killed_by(which: int) -> None:
    os.kill(os.getpid(), which)


def exit_at_the_end() -> None:
    atexit.register(os._exit, 3)


def write_from(rank: int, path: Path) -> None:
    if int(os.environ["RANK"]) == rank:
        path.write_text(str(os.getpid()))


def sleep_forever(marker: Path) -> None:
    write_from(1, marker)
    if int(os.environ["RANK"]) == 1:
        while True:
            time.sleep(3600)
    while not marker.exists():  # gloo wants it until rank 1 has its group
        time.sleep(0.01)


def receive_what_nobody_sends(marker: Path) -> None:
    write_from(1, marker)
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    threading.Event().wait()


def fail_beside_a_sleeper(marker: Path) -> None:
    write_from(1, marker)
    if int(os.environ["RANK"]) == 1:
        time.sleep(36000)
    while not marker.exists():
        time.sleep(0.01)
    raise ValueError("rank 0 is first")


def debug_level() -> str:
    return str(dist.distributed_c10d.get_debug_level())


def speak() -> None:
    print("said by", os.environ["RANK"])


@pytest.fixture
def jump_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bool]], None]:
    """Moves the clock of `testing` beyond every limit as soon as a condition holds."""

    def arm(condition: Callable[[], bool]) -> None:
        monkeypatch.setattr(running, "_now", lambda: time.monotonic() + (10 * FAR if condition() else 0.0))

    return arm


def test_values_come_by_rank() -> None:
    assert run_ranks(all_reduced, 3, 2.0, backend="gloo", timeout=FAR) == [(0, 12.0), (1, 12.0), (2, 12.0)]


def test_one_rank() -> None:
    assert run_ranks(all_reduced, 1, 2.0, backend="gloo", timeout=FAR) == [(0, 2.0)]


def test_ranks_have_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_THE_CALLER", "c")
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "FROM_THE_CALLER", "FOR_ALL", "OWN")
    own = [{"OWN": "zero"}, {"OWN": "one", "FOR_ALL": "not for me"}]
    zero, one = run_ranks(
        facts, 2, *names, backend="gloo", timeout=FAR, init=False, env={"FOR_ALL": "a"}, rank_env=own
    )
    assert list(zero.values()) == ["0", "2", "127.0.0.1", "1", "c", "a", "zero"]
    assert list(one.values()) == ["1", "2", "127.0.0.1", "1", "c", "not for me", "one"]


def test_no_group_unless_asked_for() -> None:
    assert run_ranks(state, 2, backend="gloo", timeout=FAR, init=False) == [(False, 1)] * 2
    assert run_ranks(state, 2, backend="gloo", timeout=FAR) == [(True, 1)] * 2


def test_a_function_may_make_its_own_group() -> None:
    assert run_ranks(own_group, 2, timeout=FAR, init=False) == ["gloo", "gloo"]


def test_debug_level_is_read_in_the_rank() -> None:
    levels = run_ranks(debug_level, 1, backend="gloo", timeout=FAR, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert levels == ["DebugLevel.DETAIL"]


def test_ranks_that_speak_are_heard(capfd: pytest.CaptureFixture[str]) -> None:
    run_ranks(speak, 2, backend="gloo", timeout=FAR, init=False)
    assert capfd.readouterr().out == "[0] said by 0\n[1] said by 1\n"


def test_an_exception_is_raised_here_with_rank_and_traceback() -> None:
    with pytest.raises(RankError, match="the reason") as caught:
        run_ranks(raise_on, 2, 1, backend="gloo", timeout=FAR)
    assert "in raise_on" in caught.value.errors[1]
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_exception_that_cannot_travel_is_told_as_text() -> None:
    with pytest.raises(RankError, match="UnpicklableError: told as text") as caught:
        run_ranks(raise_unpicklable, 1, backend="gloo", timeout=FAR, init=False)
    assert caught.value.__cause__ is None


def test_a_value_that_cannot_travel_fails_the_rank() -> None:
    with pytest.raises(RankError, match="pickle"):
        run_ranks(threading.Lock, 1, backend="gloo", timeout=FAR, init=False)


def test_a_rank_that_dies_is_named() -> None:
    with pytest.raises(RankError) as caught:
        run_ranks(exit_on, 2, 1, backend="gloo", timeout=FAR, init=False)
    assert caught.value.errors == {1: "ended with exit status 7 and left no result"}
    assert caught.value.unended == []


def test_a_rank_that_is_killed_is_named_with_the_signal() -> None:
    with pytest.raises(RankError, match="rank 0: ended with signal SIGKILL"):
        run_ranks(killed_by, 1, signal.SIGKILL, backend="gloo", timeout=FAR, init=False)


def test_dying_after_the_return_is_a_failure() -> None:
    with pytest.raises(RankError, match="rank 0: had returned, then ended with exit status 3"):
        run_ranks(exit_at_the_end, 1, backend="gloo", timeout=FAR, init=False)


@pytest.mark.parametrize("hang", [sleep_forever, receive_what_nobody_sends])
def test_the_limit_shows_stacks_and_kills(
    hang: Callable[[Path], None],
    tmp_path: Path,
    jump_after: Callable[[Callable[[], bool]], None],
    capfd: pytest.CaptureFixture[str],
) -> None:
    marker = tmp_path / "pid"
    jump_after(lambda: marker.exists() and marker.read_text() != "")
    with pytest.raises(RankError, match=r"had not ended after 600 s: .*1") as caught:
        run_ranks(hang, 2, marker, backend="gloo", timeout=FAR)
    assert 1 in caught.value.unended
    assert stacks.ended(int(marker.read_text()))
    said = capfd.readouterr().err
    assert f"in {hang.__name__}" in said.partition("rank 1")[2], "its Python stack"
    assert "C stacks" in said.partition("rank 1")[2]


def test_the_others_get_a_grace_when_one_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "pid"
    with pytest.raises(RankError) as caught:
        run_ranks(fail_beside_a_sleeper, 2, marker, backend="gloo", timeout=FAR, init=False, grace=0.0)
    assert caught.value.unended == [1]
    assert "0 s after rank 0 failed: 1" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert stacks.ended(int(marker.read_text()))
    assert "in fail_beside_a_sleeper" in capfd.readouterr().err


def test_without_a_debugger_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    text = stacks.native_stacks([os.getpid()])[os.getpid()]
    assert "no debugger" in text
    assert "wchan" in text


def test_descendants_are_found_to_the_last(tmp_path: Path) -> None:
    outer = subprocess.Popen(
        ["sh", "-c", "sh -c 'echo $$; sleep 3600; :'; :"], stdout=subprocess.PIPE, text=True
    )
    assert outer.stdout is not None
    inner = int(outer.stdout.readline())
    assert inner in stacks.descendants(os.getpid())
    stacks.kill([*stacks.descendants(outer.pid), outer.pid])
    outer.wait()
    outer.stdout.close()
    assert stacks.ended(inner)


SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
line = f"rank {dist.get_rank()} of {int(x)} {os.environ['EXTRA']}\\n"
os.write(1, line.encode())  # in one piece: both ranks write to one file
dist.destroy_process_group()
"""

STUCK_SCRIPT = """
import os, pathlib, sys, time
def never_ends():
    pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(str(os.getpid()))
    time.sleep(36000)
never_ends()
"""


def test_a_script_runs_under_torchrun() -> None:
    output = run_script(SCRIPT, 2, timeout=FAR, env={"EXTRA": "seen"})
    assert {"rank 0 of 2 seen", "rank 1 of 2 seen"} <= set(output.splitlines())


def test_a_script_runs_without_a_launcher(tmp_path: Path) -> None:
    path = tmp_path / "hello.py"
    path.write_text("import sys; print('hello', *sys.argv[1:])")
    assert run_script(path, 1, "you", launcher="python", timeout=FAR) == "hello you\n"


def test_a_script_that_fails_is_an_error_with_its_output() -> None:
    with pytest.raises(ScriptError, match="exit status 9") as caught:
        run_script("print('so far', flush=True); raise SystemExit(9)", 1, launcher="python", timeout=FAR)
    assert caught.value.output == "so far\n"


def test_a_script_that_hangs_is_shown_and_killed(
    tmp_path: Path, jump_after: Callable[[Callable[[], bool]], None]
) -> None:
    marks = [tmp_path / "0", tmp_path / "1"]
    jump_after(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    with pytest.raises(ScriptError, match="did not end within 600 s") as caught:
        run_script(STUCK_SCRIPT, 2, str(tmp_path), timeout=FAR)
    assert "in never_ends" in caught.value.output
    assert all(stacks.ended(int(mark.read_text())) for mark in marks)


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(ValueError, match="no launcher 'mpirum'"):
        run_script("pass", 2, launcher="mpirum")
