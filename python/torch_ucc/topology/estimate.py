"""How long a collective should take on hosts that are described by a few constants. Pure functions.

What is assumed:

- All hosts are alike, and all have the same number of ranks. Nothing else uses their cores or links.
- A link sends and receives at full bandwidth at the same time. The switch carries what all links send.
- The network is TCP. Data gets 95 % of the bandwidth, and headers the rest. UCX copies each byte once
  before it is sent and once after it is received.
- A step between hosts takes the latency, and a step on a host the time of a notification. A rank that
  sends several messages in a step needs a quarter of the latency for each further message.
- All ranks call the operation at the same time. The call itself takes a core 3 us.
- All ranks of a host copy equally much. In levels, little data goes through few rows. Then only the ranks
  of these rows reduce and use the network, so they use few cores.
- The data is cut into equal pieces. While one piece crosses the network, the memory works on another one. The
  first piece takes the sum of its parts, and each later piece as long as the slowest part.
- What `traffic` assumes about UCC. Settings of UCC and UCX are not considered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch_ucc.config import Config
from torch_ucc.topology.traffic import Team, Traffic, traffic

OPS = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")
IN_LEVELS, ONE_TEAM, IN_MEMORY = "in levels", "one UCC team of all ranks", "memory of the host"

LINK_SHARE = 0.95
MESSAGE_SHARE = 0.25
"""Of the latency, for each further message of a step."""
CALL = 3e-6
"""Seconds that torch takes to call a backend and to return."""

_LEVELS_WINDOW = 3
_LEAST_SHARE, _LEAST_SLICE = 64 << 10, 16 << 10
_SLOTS, _AT_ONCE_BYTES = 4, 128 << 10
_LEAST_PART, _MOST_AT_ONCE = 256 << 10, 16 << 20
# kWindow of cpp/hosts/collective.h, kLeastShare and kLeastSlice of cpp/hosts/piece.cc, kDepth of
# cpp/shm/board.h, kRead of cpp/shm/pattern.cc, and kLeast and kMostAtOnce of cpp/ops/prepared.cc.


@dataclass(frozen=True)
class Host:
    """What the ranks of one host can do, all together."""

    cores: float
    """How many cores the ranks may use. It is a fraction if one machine simulates several hosts."""
    copy: float
    """Bytes that the ranks copy in a second."""
    reduce: float
    """Bytes that the ranks read in a second while they reduce."""
    tcp: float
    """Bytes that the ranks send and receive by TCP in a second if the cores decide, and not the network."""
    step: float
    """Seconds from a notification in shared memory until the notified rank goes on."""


@dataclass(frozen=True)
class Network:
    bandwidth: float
    """Bytes that a host can send in a second."""
    latency: float
    """Seconds from the send of a small message to its receipt, with the time of the software."""


@dataclass(frozen=True)
class Estimate:
    """The cost of an operation in one way. All times are seconds."""

    way: str
    is_taken: bool
    """Whether the operation would go this way with the given settings."""
    seconds: float
    memory: float
    """What the cores do. Memory, network and steps overlap if there are several pieces. They then add up
    to more than `seconds`."""
    network: float
    steps: float
    """Steps, and the call."""
    link_bytes: float
    """What the busiest host sends to other hosts, or receives from them if that is more."""
    rank_bytes: float
    """Memory that a rank needs beside its tensors. What UCX allocates for each peer is not counted."""
    step_count: int
    """Steps of all pieces."""
    pieces: int
    by: str
    """UCC's collective and its algorithm. It is empty if hosts exchange nothing."""


_NOTHING = Traffic()


@dataclass(frozen=True)
class _Piece:
    """What one host does for one piece. All amounts are bytes."""

    copied: float
    reduced: float = 0
    board_steps: int = 0
    """Steps through shared memory."""
    by: str = ""
    """The name of UCC's collective, if there is one."""
    between: Traffic = _NOTHING
    """What this collective costs."""
    rows: float = 1
    """How many teams do it at the same time. It is a fraction if the last team has less data than the
    others."""
    room: float = 0
    """Memory of the operation on one rank."""
    in_turn: int = 1
    """If 2, the root's host does half of the work and of the board steps, and then the other hosts do
    the other half."""


def estimates(
    op: str, size: int, team: Team, host: Host, network: Network, settings: Config | None = None
) -> list[Estimate]:
    """The cost of each way in which `op` can go. One of these ways is taken.

    `size`: bytes of the whole tensor, which is the result of an all_gather and the input of a
    reduce_scatter. It is ignored for a barrier. Raises ValueError for an operation that is not in `OPS`.
    """
    if op not in OPS:
        raise ValueError(f"{op!r} is not one of {', '.join(OPS)}")
    settings = settings or Config()
    size = 0 if op == "barrier" else size
    ways: list[tuple[str, int, int, _Piece]] = []
    if team.hosts == 1 and team.ranks > 1:
        ways.append((IN_MEMORY, 1, 1, _on_host(op, size, team.per_host)))
    elif team.per_host > 1:
        ways.append((IN_LEVELS, *_in_levels(op, size, team, 2 * settings.segment_bytes)))
    if team.hosts > 1 or not settings.host_path:
        ways.append((ONE_TEAM, *_by_one_team(op, size, team, settings)))
    is_small = max(1, size) < settings.levels_from  # a barrier counts as one byte
    by_one_team = not settings.host_path or team.per_host == 1 or (team.hosts > 1 and is_small)
    taken = ONE_TEAM if by_one_team else ways[0][0]
    return [
        _timed(way, way == taken, team, host, network, pieces, window, piece)
        for way, pieces, window, piece in ways
    ]


def _timed(
    way: str,
    is_taken: bool,
    team: Team,
    host: Host,
    network: Network,
    pieces: int,
    window: int,
    piece: _Piece,
) -> Estimate:
    between = piece.between
    link, inside = between.link * piece.rows, between.inside * piece.rows
    at_work = min(float(team.per_host), host.cores)
    in_rows = min(at_work, math.ceil(piece.rows)) / at_work if way == IN_LEVELS else 1.0
    by_rows = (
        2 * (inside + link) / host.copy
        + (piece.reduced + between.reduced * piece.rows) / host.reduce
        + 2 * link / host.tcp
    )
    memory = piece.copied / host.copy + by_rows / in_rows
    crossing = link / (network.bandwidth * LINK_SHARE)
    on_board = piece.board_steps * host.step
    taking_turns = max(1.0, team.per_host / host.cores)  # ranks for each core
    call = CALL * taking_turns
    waits = (
        between.far * (network.latency + host.step)
        + between.near * host.step
        + between.messages * MESSAGE_SHARE * network.latency * taking_turns
    )
    one = memory + on_board + crossing + waits
    slowest = max((memory + on_board) / piece.in_turn, crossing, one / min(window, pieces))
    in_memory = way != ONE_TEAM
    return Estimate(
        way=way,
        is_taken=is_taken,
        seconds=call + one + (pieces - 1) * slowest,
        memory=pieces * memory,
        network=pieces * crossing,
        steps=call + pieces * (on_board + waits),
        link_bytes=pieces * link,
        rank_bytes=min(window, pieces) * (piece.room + between.scratch)
        + in_memory * _SLOTS * slot_bytes(team.per_host),
        step_count=pieces * (piece.board_steps + between.far + between.near),
        pieces=pieces,
        by=f"{piece.by} by {between.algorithm}" if piece.by else "",
    )


def slot_bytes(ranks: int) -> int:
    """The size of a slot if `ranks` ranks of a host share memory, as in cpp/shm/arena.cc."""
    return max(min(max(ranks << 16, 128 << 10), 256 << 10), -(-ranks * 2048 // 4096) * 4096)


def _times(size: float, share: float) -> int:
    return max(1, math.ceil(size / share))


def _on_host(op: str, size: float, ranks: int) -> _Piece:
    """An operation of ranks that are all on one host. Its memory and its steps do not overlap, so it is
    one piece."""
    slot = slot_bytes(ranks)
    if op == "barrier":
        return _Piece(0, board_steps=1)
    if op == "broadcast":
        return _Piece(size * ranks, board_steps=_times(size, slot))
    if op == "all_gather":
        return _gathered(size, size / ranks, ranks)
    if op == "reduce_scatter":
        return _reduced(size, size / ranks, ranks)
    all_get = op == "all_reduce"
    if size * ranks <= _AT_ONCE_BYTES:
        return _Piece(size * ranks, size * ranks * (ranks if all_get else 1), 1)
    chunk = slot // ranks * ranks
    copied = size * (ranks - 1) + size * (ranks if all_get else 1)
    return _Piece(copied, size * ranks, _times(size, chunk) + 1)


def _reduced(size: float, share: float, ranks: int) -> _Piece:
    """Each rank has `size` bytes. They are cut in shares, and a rank gets the sum of its share, if there is
    one for it."""
    return _Piece(size * (ranks - 1), size * ranks, _times(share, slot_bytes(ranks) / max(1, ranks - 1)))


def _gathered(size: float, share: float, ranks: int) -> _Piece:
    """Each rank has a share of `size` bytes, or nothing, and gets all shares."""
    return _Piece(size * (ranks + 1), 0, _times(share, slot_bytes(ranks)))


def _in_levels(op: str, size: int, team: Team, wanted: int) -> tuple[int, int, _Piece]:
    """The number of pieces, how many are under way at once, and one of them."""
    if op in ("all_gather", "reduce_scatter"):
        pieces = _times(size / team.ranks, max(wanted / team.ranks, _LEAST_SLICE))
    else:
        pieces = _times(size, wanted)
    return pieces, _LEVELS_WINDOW, _LEVEL_PIECES[op](op, size / pieces, team)


def _share_of(size: float, ranks: int) -> float:
    """The share of a row. Shorter shares would take less time than the messages and steps for them, so
    little data goes through few rows."""
    return min(size, max(_LEAST_SHARE, size / ranks))


def _barrier_piece(op: str, size: float, team: Team) -> _Piece:
    """The ranks of a host meet before and after the first row does."""
    return _Piece(0, 0, 2, "barrier", traffic("barrier", size, _row(team)))


def _reduce_piece(op: str, size: float, team: Team) -> _Piece:
    """An all_reduce or a reduce. On each host, the rank of each row reduces a share. With two hosts, UCC
    brings this share of both to each host that needs the sum, and the rank adds both up. With more hosts,
    UCC reduces it. Last, the ranks of a host gather the shares, or only the root does."""
    ranks, share = team.per_host, _share_of(size, team.per_host)
    first = _reduced(size, share, ranks)
    last = _gathered(size, share, ranks)
    if op == "reduce":
        last = _Piece(2 * size - share, 0, last.board_steps)
    name, given, added = _OF_UCC[op], share, 0.0
    if team.hosts == 2:
        name, given, added = ("allgather" if op == "all_reduce" else "gather"), 2 * share, 2 * size
    return _Piece(
        first.copied + last.copied,
        first.reduced + added,
        first.board_steps + last.board_steps,
        name,
        traffic(name, given, _row(team)),
        size / share,
        given,
    )


def _reduce_scatter_piece(op: str, size: float, team: Team) -> _Piece:
    """The ranks of a host reduce, for each host, the data of the ranks there. The rows exchange the results,
    and each rank adds what it received."""
    hosts, ranks = team.hosts, team.per_host
    for_one = _reduced(size / hosts, size / team.ranks, ranks)
    return _Piece(
        hosts * for_one.copied,
        hosts * for_one.reduced + size,
        hosts * for_one.board_steps,
        "alltoall",
        traffic("alltoall", size / ranks, _row(team)),
        ranks,
        2 * size / ranks,
    )


def _all_gather_piece(op: str, size: float, team: Team) -> _Piece:
    """The ranks of a host gather their own parts. Then each row gathers its parts, and the ranks of a host
    gather the parts of each other host. Each rank copies its part for the row before."""
    hosts, ranks = team.hosts, team.per_host
    of_one = _gathered(size / hosts, size / team.ranks, ranks)
    return _Piece(
        hosts * of_one.copied + size / hosts,
        0,
        hosts * of_one.board_steps,
        "allgather",
        traffic("allgather", size / ranks, _row(team)),
        ranks,
        size / ranks,
    )


def _broadcast_piece(op: str, size: float, team: Team) -> _Piece:
    """On its host, the root gives the rank of each row a share, and then all ranks the whole piece. Each row
    broadcasts its share, and the ranks of the other hosts gather the shares."""
    ranks, share = team.per_host, _share_of(size, team.per_host)
    slot, last = slot_bytes(ranks), _gathered(size, share, ranks)
    scattered = _times(share, (slot - 8 * ranks) / (ranks - 1))  # in front of the shares is a table
    return _Piece(
        (2 * size - share) + size * ranks + last.copied,
        0,
        scattered + _times(size, slot) + last.board_steps,
        "bcast",
        traffic("bcast", share, _row(team)),
        size / share,
        share,
        in_turn=2,
    )


def _row(team: Team) -> Team:
    return Team(team.hosts, 1)


_LEVEL_PIECES: dict[str, Callable[[str, float, Team], _Piece]] = {
    "all_reduce": _reduce_piece,
    "reduce": _reduce_piece,
    "reduce_scatter": _reduce_scatter_piece,
    "all_gather": _all_gather_piece,
    "broadcast": _broadcast_piece,
    "barrier": _barrier_piece,
}

_OF_UCC = {
    "all_reduce": "allreduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "allgather",
    "broadcast": "bcast",
    "barrier": "barrier",
}


def _by_one_team(op: str, size: int, team: Team, settings: Config) -> tuple[int, int, _Piece]:
    """UCC works in buffers of the operation. A rank copies its data to them and its result from them."""
    ranks, name = team.ranks, _OF_UCC[op]
    window = settings.segment_window
    if op in ("all_gather", "reduce_scatter"):
        wanted = max(settings.segment_bytes / ranks, min(_LEAST_PART, _MOST_AT_ONCE / ranks))
        share = max(wanted // 4096, 1.0) * 4096
        is_cut = size > settings.segment_bytes and size / ranks > share
        pieces, window = (_times(size / ranks, share) if is_cut else 1), 1
        each = size / pieces * (1 + 1 / ranks)
    else:
        pieces = _times(size, settings.segment_bytes)
        each = size / pieces * (1 if op == "broadcast" else 2)
    between = traffic(name, size / pieces, team)
    return pieces, window, _Piece(team.per_host * each, by=name, between=between, room=each)
