"""Text for people: styles that appear only on a terminal, and tables.

Each style returns its text unchanged if stdout is not a terminal, if NO_COLOR is set, or if TERM is "dumb".
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

_ESCAPE = re.compile(r"\033\[\d*m")


def is_styled() -> bool:
    is_refused = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not is_refused


def _style(code: int) -> Callable[[str], str]:
    def styled(text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if text and is_styled() else text

    return styled


bold, dim = _style(1), _style(2)
red, green, yellow = _style(31), _style(32), _style(33)


def plain(text: str) -> str:
    return _ESCAPE.sub("", text)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row. Cells of a column start below each other; they may have styles."""
    widths = [max(len(plain(cell)) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell + " " * (width - len(plain(cell))) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *rest = columns([head, *rows])
    return "\n".join([bold(first), *rest])
