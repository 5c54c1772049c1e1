"""What a command prints on a terminal has styles, and is otherwise what it prints into a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from torch_ucc import _style

DGX = Path(__file__).parent / "topology" / "machines" / "dgx_h100.json"
COMMAND = [sys.executable, "-m", "torch_ucc"]
COMMANDS = [["topo", "--replay", str(DGX)], ["plan", "--replay", str(DGX)], ["doctor", "--replay", str(DGX)]]
BOLD = "\033[1m"


def on_a_terminal(arguments: list[str], **environment: str) -> str:
    """What a terminal shows of the command."""
    ours, theirs = pty.openpty()
    unset = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    run = subprocess.Popen(COMMAND + arguments, stdout=theirs, env={**unset, "TERM": "xterm", **environment})
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:  # the last writer has closed it
        pass
    os.close(ours)
    assert run.wait(60) == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_a_terminal_shows_the_text_of_a_pipe_with_styles(arguments: list[str]) -> None:
    piped = subprocess.run(COMMAND + arguments, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    shown = on_a_terminal(arguments)
    assert "\033" not in piped and "\033[" in shown
    assert _style.plain(shown) == piped


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_who_wants_no_styles_gets_none(variable: dict[str, str]) -> None:
    assert "\033" not in on_a_terminal(COMMANDS[0], **variable)


def test_json_has_no_styles() -> None:
    assert "\033" not in on_a_terminal(["plan", "--json", "--replay", str(DGX)])


def test_columns_are_as_wide_with_styles_as_without() -> None:
    assert _style.columns([[f"{BOLD}a\033[0m", "b"], ["long", "c"]]) == [f"{BOLD}a\033[0m     b", "long  c"]
    assert _style.columns([]) == []
