"""Values on the command line that are written as settings are."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def as_setting(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """For `type=` of argparse: a parser of `config`, whose ValueError says what the text is not."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return parsed
