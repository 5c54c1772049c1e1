"""A trace as one HTML page that needs nothing else: a timeline of all ranks, and the report below it."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

from torch_ucc.tracing import text
from torch_ucc.tracing.timeline import Entry


def render(entries: Sequence[Entry], lost: int = 0) -> str:
    ops = sorted({entry.record.op for entry in entries})
    rows = [
        [
            entry.rank,
            ops.index(entry.record.op),
            entry.start_ns,
            max(entry.end_ns - entry.start_ns, 1),
            f"{entry.record.describe()} seq {entry.record.seq} of group {entry.group}\n"
            f"{text.duration(entry.end_ns - entry.start_ns)}, {text.size(entry.record.bytes)}, "
            f"{entry.record.route}, {entry.record.state}\n"
            f"by {entry.issuer.what} ({entry.issuer.kind})\n{entry.issuer.where}",
        ]
        for entry in entries
    ]
    # "</" would end the script element.
    data = json.dumps({"ops": ops, "rows": rows}).replace("</", "<\\/")
    page = Path(__file__).with_name("page.html").read_text()
    return page.replace("@REPORT@", html.escape(text.report(entries, lost))).replace("@DATA@", data)
