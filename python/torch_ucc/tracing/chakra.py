"""Traces as execution traces of MLCommons Chakra, in the form that PyTorch writes and PARAM replays.

One file a rank, `rank-<N>.json`. It contains communication only: the groups, each operation, and where the
program waited for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_ucc.tracing.calls import steps
from torch_ucc.tracing.records import Dump, Group, Record

SCHEMA = "1.1.0-chakra.0.0.4"

# The names of c10d's profiler events, where they are not ours.
_NAMES = {
    "all_gather": "allgather",
    "all_gather_into_tensor": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "all_reduce": "allreduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_to_all_single": "all_to_allv",
    "gather_single": "gather",
    "monitored_barrier": "barrier",
    "recv_any_source": "recvanysource",
    "reduce_scatter_tensor": "_reduce_scatter_base",
}
_DTYPES = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "int32": "Int",
    "int16": "Short",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}
# Of each of these the shapes of all tensors are wanted.
_LISTS = (
    "all_to_all",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
    "all_reduce_coalesced",
)


def save(dumps: Sequence[Dump], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for dump in dumps:
        (folder / f"rank-{dump.rank}.json").write_text(json.dumps(convert(dump)))


def convert(dump: Dump) -> dict[str, Any]:
    # Groups have numbers there. Ours are numbered in the order in which they were made.
    numbers = {number: str(i) for i, number in enumerate(sorted(dump.groups))}
    nodes = [
        _node(1, "[pytorch|profiler|execution_trace|process]", []),
        _node(
            2,
            "## process_group:init ##",
            [json.dumps([_group(numbers[n], g) for n, g in dump.groups.items()])],
        ),
    ]
    for step in steps(dump):
        group = dump.groups[step.record.group]
        name = numbers[step.record.group]
        nodes.append(_call(len(nodes) + 1, step.record, group, name, wait=step.waits))
    return {
        "schema": SCHEMA,
        "pid": dump.pid,
        "time": "",
        "start_ts": dump.records[0].issued_ns // 1000 if dump.records else 0,
        "nodes": nodes,
    }


def _group(name: str, group: Group) -> dict[str, Any]:
    return {
        "pg_name": name,
        "pg_desc": group.name,
        "backend_config": "cpu:ucc",
        "pg_size": len(group.ranks),
        "ranks": list(group.ranks),
        "group_size": len(group.ranks),
        "group_count": 1,
    }


def _call(number: int, record: Record, group: Group, name: str, wait: bool) -> dict[str, Any]:
    called = "wait" if wait else _NAMES.get(record.op, record.op)
    size = len(group.ranks)
    rank = record.peer if record.message else record.root
    splits = [record.input_elements // size] * size, [record.output_elements // size] * size
    uneven = record.op == "all_to_all_single"
    attributes = {
        "collective_name": called,
        "dtype": _DTYPES.get(record.dtype, "Float" if not record.dtype else record.dtype),
        "in_msg_nelems": record.input_elements,
        "out_msg_nelems": record.output_elements,
        "in_split_size": json.dumps(splits[0] if uneven else []),
        "out_split_size": json.dumps(splits[1] if uneven else []),
        "global_rank_start": group.ranks[0],
        "global_rank_stride": group.ranks[1] - group.ranks[0] if size > 1 else 1,
        "pg_name": name,
        "pg_desc": group.name,
        "pg_size": size,
    }
    node = _node(
        number,
        "record_param_comms",
        [[record.seq, record.message], [name, group.name], max(rank, 0), called],
        attributes,
    )
    if record.op in _LISTS and not wait:
        node["inputs"]["shapes"][0] = [[each] for each in splits[0]]
        node["outputs"]["shapes"] = [[[each] for each in splits[1]]]
    node["ts_us"] = record.issued_ns / 1000
    return node


def _node(
    number: int, name: str, values: list[Any], attributes: dict[str, Any] | None = None
) -> dict[str, Any]:
    own = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": 1,
        "inputs": {
            "values": values,
            "shapes": [[] for _ in values],
            "types": [_type(each) for each in values],
        },
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [
            {"name": key, "type": "string" if isinstance(value, str) else "int64", "value": value}
            for key, value in {**own, **(attributes or {})}.items()
        ],
    }


def _type(value: Any) -> str:
    if isinstance(value, list):
        return f"GenericList[{','.join(_type(each) for each in value)}]"
    return "Bool" if isinstance(value, bool) else "Int" if isinstance(value, int) else "String"
