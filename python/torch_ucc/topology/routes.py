"""Which way a call goes: what of ours serves it, and what UCC and UCX say of it in their logs. Pure functions
of text: `ask_routes` makes the calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch_ucc.topology.plan import OTHER_HOST, SAME_HOST

BY_UCC, BY_MEMORY, BY_MESSAGES, BY_STORE = "UCC", "shared memory", "messages", "the store"
BY_LEVELS = "shared memory on each host, UCC between hosts"

_COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "barrier",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
)
_IN_LEVELS = ("all_reduce", "all_reduce_coalesced", "barrier", "broadcast", "reduce")
_IN_EVEN_LEVELS = tuple(op for op in _COLLECTIVES if op not in _IN_LEVELS)
_EXCHANGES = ("all_to_all", "all_to_all_single", "gather", "gather_single", "scatter")
_MESSAGES = ("recv", "recv_any_source", "send", "sparse_all_reduce")


def ways(in_memory: bool, has_levels: bool = False, has_even_levels: bool = False) -> dict[str, str]:
    """By what each operation of a group goes: memory that its ranks share, a collective of UCC, messages
    over UCX, or the job's store.

    `in_memory` says whether the group goes through memory that its ranks share. `has_levels` says whether
    it spans hosts and goes through such memory on each host, and `has_even_levels` whether each host then has
    as many of its ranks. In a group that spans hosts, messages between ranks of one host go through such
    memory, too.
    """
    return {
        **dict.fromkeys(_COLLECTIVES, BY_MEMORY if in_memory else BY_UCC),
        **dict.fromkeys(_EXCHANGES, BY_MEMORY if in_memory else BY_MESSAGES),
        **dict.fromkeys(_MESSAGES, BY_MEMORY if in_memory else BY_MESSAGES),
        "monitored_barrier": BY_STORE,
        **(dict.fromkeys(_IN_LEVELS, BY_LEVELS) if has_levels else {}),
        **(dict.fromkeys(_IN_EVEN_LEVELS, BY_LEVELS) if has_even_levels else {}),
    }


_CONTEXTS = {"UCC_UCP_CONTEXT": BY_UCC, "torch_ucc": BY_MESSAGES}
_PEERS = {"intra-node": SAME_HOST, "inter-node": OTHER_HOST}


@dataclass(frozen=True)
class Collective:
    """One that UCC was given: `by` is "CL_BASIC {TL_UCP}", `range` the sizes for which it takes this
    algorithm, which is empty where UCC names none, since it has but one."""

    name: str
    by: str
    bytes: int
    algorithm: str
    range: str


@dataclass(frozen=True)
class Protocol:
    """How UCX sends a message of `first` to `last` bytes, if there is a last, to such a peer."""

    peers: str
    first: int
    last: int | None
    how: str
    over: str

    def covers(self, size: int) -> bool:
        return self.first <= size and (self.last is None or size <= self.last)


@dataclass(frozen=True)
class Route:
    """`collectives` that UCC was given, one for each piece, or messages of ours of `message_bytes`; and how
    UCX sends those. What UCC makes of a collective has sizes of its own: there it is how UCX sends any."""

    op: str
    bytes: int
    ranks: int
    way: str
    collectives: tuple[Collective, ...]
    message_bytes: int | None
    protocols: tuple[Protocol, ...]


def collectives(log: str, score_maps: str) -> list[Collective]:
    """In `log`, what a rank 0 was given by UCC's trace of collectives; `score_maps` are in its log at level
    debug."""
    found = []
    for match in re.finditer(r"coll_init: (\w+)(.*?); (\w+ \{[^}]*\}), team_id (\d+)", log):
        name, buffers, by, team = match.groups()
        sizes = re.findall(r"=\{[^,}]*, (\d+), (\w+),", buffers)
        size = int(sizes[-1][0]) * _width(sizes[-1][1]) if sizes else 0
        algorithm, its_range = _chosen(score_maps, int(team), name, size)
        found.append(Collective(name, by, size, algorithm, its_range))
    return found


def _width(datatype: str) -> int:
    """In bytes, of "uint8" or "float32"."""
    bits = re.search(r"\d+", datatype)
    return int(bits[0]) // 8 if bits else 1


def _chosen(log: str, team: int, name: str, size: int) -> tuple[str, str]:
    """Of the ranges that UCC wrote for such a collective on host memory, the first with this size."""
    body = re.search(rf"COLL_SCORE_MAP \(team_id {team},.*?=====(.*?)=====", log, re.DOTALL)
    part = re.search(rf"\b{name}:\s*\n(.*?)(?=\b[A-Z]\w+:\s*\n|\Z)", body[1], re.DOTALL) if body else None
    ranges = re.search(r"\bHost: (.*)", part[1]) if part else None
    for span, function in re.findall(r"\{([^}]*)\}:\w+:\w+=(\S+)", ranges[1] if ranges else ""):
        low, _, high = span.partition("..")
        first, last = _ends(low, high or low)
        if first <= size and (last is None or size <= last):
            named = re.sub(r"^ucc_[ct]l_[a-z]+_|_init$", "", function)
            return ("" if named == "coll" else named), span
    return "", ""


def protocols(log: str, way: str) -> list[Protocol]:
    """Of plain messages with a tag, which is what both send, as UCX_PROTO_INFO shows them: of UCC's worker,
    or of ours. A table that comes again replaces the one before: connections change when they are made."""
    sender = BY_UCC if way == BY_LEVELS else way
    found: dict[str, list[Protocol]] = {}
    for table in _tables(log):
        is_plain = re.fullmatch(r"tagged message by ucp_tag_send\* from \w+ memory", table.operation)
        if is_plain and _CONTEXTS.get(table.context) == sender and table.peers in _PEERS:
            found[table.peers] = table.rows
    return [row for rows in found.values() for row in rows]


@dataclass
class _Table:
    context: str
    peers: str
    operation: str
    rows: list[Protocol]


def _tables(log: str) -> list[_Table]:
    """UCX has the operation beside the head of a table or, since 1.22, below it."""
    tables: list[_Table] = []
    for line in log.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            continue
        if head := re.match(r"(\S+) (self|intra-node|inter-node) cfg#", cells[0]):
            tables.append(_Table(head[1], head[2], "".join(cells[1:]), []))
        elif tables and not tables[-1].operation:
            tables[-1].operation = cells[0]
        elif tables and (span := re.fullmatch(r"(\d\w*)\.\.(\w+)", cells[0])):
            peers = _PEERS.get(tables[-1].peers, "")
            tables[-1].rows.append(
                Protocol(peers, *_ends(span[1], span[2]), cells[1].removeprefix("(?) "), cells[2])
            )
    return tables


def _ends(first: str, last: str) -> tuple[int, int | None]:
    """UCX and UCC write 8249, 512K, 1M and, for no end, inf."""

    def number(text: str) -> int:
        return int(text.rstrip("KMGT")) << {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1], 0)

    return number(first), None if last == "inf" else number(last)


def merged(each: Iterable[Iterable[Protocol]]) -> tuple[Protocol, ...]:
    """What all ranks said, each once."""
    order = [SAME_HOST, OTHER_HOST]
    every = dict.fromkeys(row for rows in each for row in rows)
    return tuple(sorted(every, key=lambda row: (order.index(row.peers), row.first, row.over)))
