"""Dumps in the format of PyTorch's own flight recorder, for its analyser `torchfrtrace`.

The analyser knows collectives under the names of NCCL's process group, and backends that ours is not among:
it is told that they are gloo's. Messages are left out, since it can match them only in groups of two.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_ucc.tracing.records import Dump, Record

VERSION = "2.10"

_NAMES = {
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "all_gather_into_tensor": "_all_gather_base",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "sparse_all_reduce": "all_reduce",
}
_STATES = {"issued": "scheduled", "posted": "started", "completed": "completed", "failed": "started"}
_FRAME = re.compile(r"(.*):(\d+) (.*)")


def convert(dump: Dump) -> dict[str, Any]:
    return {
        "version": VERSION,
        "pg_config": {
            group.name: {"name": group.name, "desc": "undefined", "ranks": str(list(group.ranks))}
            for group in dump.groups.values()
        },
        "pg_status": {},
        "entries": [
            _entry(dump, record)
            for record in dump.records
            if record.collective and record.group in dump.groups
        ],
    }


def save(dumps: Sequence[Dump], folder: Path | str) -> None:
    """Writes one file a rank, which `python -m torch.distributed.flight_recorder.fr_trace FOLDER` reads."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for dump in dumps:
        (Path(folder) / f"rank_{dump.rank}").write_bytes(pickle.dumps(convert(dump)))


def _entry(dump: Dump, record: Record) -> dict[str, Any]:
    to_wall = dump.wall_ns - dump.steady_ns
    return {
        "record_id": record.id,
        "pg_id": record.group,
        "process_group": (dump.groups[record.group].name, "undefined"),
        "collective_seq_id": record.seq,
        "p2p_seq_id": 0,
        "op_id": record.id,
        "profiling_name": f"gloo:{_NAMES.get(record.op, record.op)}",
        "time_created_ns": record.issued_ns + to_wall,
        "time_discovered_started_ns": record.posted_ns + to_wall if record.posted_ns else None,
        "time_discovered_completed_ns": record.ended_ns + to_wall if record.ended_ns else None,
        "duration_ms": (record.ended_ns - record.issued_ns) / 1e6 if record.ended_ns else None,
        "input_sizes": [[record.input_elements]],
        "input_dtypes": [record.dtype],
        "output_sizes": [[record.output_elements]],
        "output_dtypes": [record.dtype],
        "state": _STATES[record.state],
        "retired": record.over,
        "is_p2p": False,
        "timeout_ms": 0,
        "frames": _frames(dump.sites.get(record.site, "")),
    }


def _frames(site: str) -> list[dict[str, str]]:
    found = (_FRAME.fullmatch(line) for line in site.splitlines())
    return [{"filename": frame[1], "line": frame[2], "name": frame[3]} for frame in found if frame]
