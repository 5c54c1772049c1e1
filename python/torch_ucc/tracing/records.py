"""The recorder's dumps as data, and where their files are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

FORMAT = 1
PATH_HELP = "the folder with the files of the ranks, or the path given to torch_ucc.trace(), such as run.json"
"""What `load` takes, for the help of commands."""


@dataclass(frozen=True)
class Record:
    """One operation of one rank. Times are nanoseconds of that rank's steady clock; 0: not yet."""

    id: int
    group: int
    seq: int
    op: str
    message: bool
    dtype: str
    reduce_op: str
    input_elements: int
    output_elements: int
    bytes: int
    root: int
    peer: int
    tag: int
    route: str
    state: str
    result: str
    issued_ns: int
    posted_ns: int
    ended_ns: int
    site: int
    awaited_ns: int = 0
    """When somebody first waited for it; 0: nobody did before its end, or only for its future."""

    @property
    def over(self) -> bool:
        return self.state in ("completed", "failed")

    @property
    def collective(self) -> bool:
        """Whether its seq is one of those that all ranks of the group count alike."""
        return not self.message and self.route != "store"

    def describe(self) -> str:
        """`all_reduce(float32[1024] SUM)`, `broadcast(int64[1], root 0)`."""
        parts = []
        if self.dtype:
            parts.append(
                f"{self.dtype}[{self.input_elements}]" + (f" {self.reduce_op}" if self.reduce_op else "")
            )
        if self.root >= 0:
            parts.append(f"root {self.root}")
        if self.message:
            parts.append(f"peer {self.peer}, tag {self.tag}" if self.peer >= 0 else f"tag {self.tag}")
        return f"{self.op}({', '.join(parts)})"


@dataclass(frozen=True)
class Group:
    number: int
    name: str
    rank: int
    ranks: tuple[int, ...]
    closed: bool = False
    failure: str = ""
    errors: dict[str, int] = field(default_factory=dict)
    context: int = 0


@dataclass(frozen=True)
class Dump:
    """What one process recorded."""

    rank: int
    reason: str
    pid: int
    host: str
    boot_id: str
    steady_ns: int
    wall_ns: int
    last_id: int
    groups: dict[int, Group]
    sites: dict[int, str]
    records: list[Record]
    lost: int = 0
    """Operations of a trace that the ring did not hold long enough."""
    steps: list[int] = field(default_factory=list)
    """Of a trace: when it began, and when each iteration of the program ended."""

    def of_group(self, name: str) -> Iterator[Record]:
        numbers = {group.number for group in self.groups.values() if group.name == name}
        return (record for record in self.records if record.group in numbers)

    def group_name(self, record: Record) -> str:
        group = self.groups.get(record.group)
        return group.name if group else f"number {record.group}"


def from_data(data: dict[str, Any]) -> Dump:
    """Raises ValueError if it is none of the recorder's."""
    if data.get("format") != FORMAT:
        raise ValueError(f"the file is not a dump of torch_ucc in format {FORMAT}")
    fields = {key: value for key, value in data.items() if key in Dump.__dataclass_fields__}
    fields["groups"] = groups_of(data["groups"])
    fields["sites"] = {int(number): text for number, text in data["sites"].items()}
    fields["records"] = [Record(**each) for each in data["records"]]
    return Dump(**fields)


def groups_of(data: list[dict[str, Any]]) -> dict[int, Group]:
    """By number. Of several with one name, made one after the other, the later ones are called `name (2)`."""
    groups: dict[int, Group] = {}
    times: Counter[str] = Counter()
    for each in data:
        times[each["name"]] += 1
        which = times[each["name"]]
        name = each["name"] if which == 1 else f"{each['name']} ({which})"
        groups[each["number"]] = Group(**{**each, "name": name, "ranks": tuple(each["ranks"])})
    return groups


def path_for(path: Path, rank: int) -> Path:
    """The file of one rank: `run.rank0.json` for `run.json`, `run/rank0.json` for a directory."""
    if path.suffix == ".json":
        return path.with_name(f"{path.stem}.rank{rank}.json")
    return path / f"rank{rank}.json"


def load(path: Path | str) -> list[Dump]:
    """The dumps, traces or histories of a directory, or of `run.json` (see path_for), by rank.

    Raises ValueError that names the path, or the file which is none.
    """
    path = Path(path)
    if path.suffix == ".json":
        folder, patterns = path.parent, [f"{path.stem}.rank*.json"]
    else:
        folder, patterns = path, ["*rank*.json", "rank*.history"]
    files = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    files = [file for file in files if not file.name.endswith(".older.history")]
    if not files:
        raise ValueError(f"{path} holds no dumps: there is no {folder / patterns[0]}")
    dumps = sorted((_read(file) for file in files), key=lambda dump: dump.rank)
    if twice := [first.rank for first, second in pairwise(dumps) if first.rank == second.rank]:
        raise ValueError(
            f"{path} holds several files of rank {twice[0]}: keep each run in a folder of its own"
        )
    return dumps


def _read(file: Path) -> Dump:
    try:
        if file.suffix == ".history":
            from torch_ucc.status import history

            return history.read(file)
        return from_data(json.loads(file.read_text(errors="replace")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def group_names(dumps: Sequence[Dump]) -> list[str]:
    """Of all groups that any rank knows, in the order in which they were made."""
    return list(dict.fromkeys(group.name for dump in dumps for group in dump.groups.values()))
