"""Colours only where a terminal shows them, and a user wants them."""

from __future__ import annotations

import io
import sys

import pytest
from torch_ucc import _style


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_a_terminal_shows_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    assert _style.red("x") == "\033[31mx\033[0m"
    assert _style.bold("x") == "\033[1mx\033[0m"
    assert _style.plain(_style.green("four")) == "four"
    assert _style.red("") == ""


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_user_may_do_without(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv(name, value)
    assert _style.red("x") == "x"


def test_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setenv("TERM", "xterm")
    assert _style.yellow(_style.dim("x")) == "x"
