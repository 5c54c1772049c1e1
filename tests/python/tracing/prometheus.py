"""Takes text in Prometheus' format apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\"n])*",?)*)\} ([\d.e+-]+)')
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def samples(text: str, kinds: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value. Every line must be a sample, or a comment of one of these kinds.

    `kinds` is a pattern: "counter|gauge".
    """
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(rf"# (HELP torch_ucc_\w+ .+|TYPE torch_ucc_\w+ ({kinds}))", line), line
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        yield match[1], dict(_LABEL.findall(match[2])), float(match[3])
