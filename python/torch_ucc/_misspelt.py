"""Names that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one that was probably meant, in whatever case, if any is near."""
    by_upper_case = {each.upper(): each for each in known}
    near = difflib.get_close_matches(name.upper(), by_upper_case, n=1)
    return by_upper_case[near[0]] if near else None
