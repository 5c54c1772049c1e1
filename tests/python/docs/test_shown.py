"""The outputs in the pages look like what the commands print."""

from __future__ import annotations

import re

import pytest
import shown
from test_blocks import RUN_BY

SHOWN = {shown.command_of(block): block for block in shown.outputs() if block.name not in RUN_BY}
MOST_VIEWED = ("topo", "plan", "doctor", "status", "trace", "tune", "bench")


@pytest.mark.parametrize("name", MOST_VIEWED)
def test_the_most_viewed_outputs_are_in_the_pages(name: str) -> None:
    assert [command for command in SHOWN if re.search(rf"torch[-_]ucc {name}\b", command)]


@pytest.mark.multirank
@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(SHOWN))
def test_an_output_has_the_form_of_what_is_printed(command: str) -> None:
    _, *lines = SHOWN[command].text.splitlines()
    assert shown.forms(shown.printed_by(command)) == shown.forms(lines)


def test_forms_differ_by_words_and_not_by_figures() -> None:
    assert shown.form("all_reduce  4 B  3.22 us ±2%  32.6x") == shown.form(
        "all_reduce 64 KB   5 ms ±11%?  1x"
    )
    assert shown.form("all_reduce  4 B  3.22 us") != shown.form("broadcast  4 B  3.22 us")
    assert shown.form("gloo/ucc >= 15  32.6x  met") == shown.form("gloo/ucc >= 15  9.1x  missed")
