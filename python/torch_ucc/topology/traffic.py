"""How many bytes and steps one collective of UCC takes between the ranks of a team. Pure functions.

This module knows the algorithms of UCC 1.9 for host memory. The size and the number of ranks decide which
algorithm UCC takes: by the rules of the plan for TCP (`algorithms`), or else by UCC's own rules.

What is assumed:

- Ranks are numbered host by host, and each host has as many ranks as the others.
- The root is the first rank.
- The ranks of a host run on one socket. UCC derives the radix of most knomial patterns from that. If
  ranks may run on several sockets, UCC takes a radix of 4.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch_ucc import config
from torch_ucc.topology import algorithms

# In the format of TL_UCP_TUNE, as in `algorithms`. The last rule of a collective has no upper end.
UCC_RULES = "#".join(
    (
        "allreduce:0-4k:@knomial",
        "allreduce:4k-inf:@sra_knomial",
        "allgather:0-4k:@knomial",
        "allgather:4k-inf:@neighbor",
        "alltoall:0-inf:@pairwise",
        "barrier:0-inf:@knomial",
        "bcast:0-inf:[2]:@knomial",
        "bcast:0-32k:@knomial",
        "bcast:32k-inf:@sag_knomial",
        "gather:0-inf:@knomial",
        "reduce:0-32k:@knomial",
        "reduce:32k-inf:@srg",
        "reduce_scatter:0-inf:@ring",
    )
)
_BRUCK_PART = 129
"""Bytes. If the parts of an alltoall are smaller, UCC sends fewer and larger messages."""
_LINEAR_BYTES, _LINEAR_RANKS = 66000, 32
"""If an alltoall has more bytes and more ranks, a rank sends its messages one after the other.
Otherwise it sends all of them at once."""
_RADIX, _BARRIER_RADIX = 4, 8


@dataclass(frozen=True)
class Team:
    """`per_host` ranks on each of `hosts` hosts."""

    hosts: int
    per_host: int

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host

    @property
    def radix(self) -> int:
        """What UCC takes for `auto`: the radix that leaves the fewest ranks over."""
        first, last = (3, self.ranks) if self.per_host == 1 else (2, self.per_host)
        return min(
            range(min(first, self.ranks), max(first, last) + 1),
            key=lambda radix: left_over(self.ranks, radix),
        )


def left_over(ranks: int, radix: int) -> int:
    """How many ranks have no place in a knomial pattern. Each gives its data to a neighbour first."""
    return ranks % _full(ranks, radix)


def _full(ranks: int, radix: int) -> int:
    """The largest power of `radix` that is not above `ranks`."""
    power = radix
    while power * radix <= ranks:
        power *= radix
    return power if power <= ranks else 1


@dataclass(frozen=True)
class Traffic:
    """What one collective costs. All amounts are bytes."""

    algorithm: str = ""
    link: float = 0
    """What the busiest host sends to other hosts, or receives from them if that is more."""
    inside: float = 0
    """What the ranks of a host send each other."""
    reduced: float = 0
    """What the reductions of a host read."""
    far: int = 0
    """Steps, one after the other, in which messages cross hosts."""
    near: int = 0
    """The other steps."""
    messages: int = 0
    """Messages that a rank sends beside the first one of each step."""
    scratch: float = 0
    """What UCC allocates on a rank."""


def traffic(collective: str, size: float, team: Team) -> Traffic:
    """The cost of `collective`, which is a name of UCC.

    `size`: bytes of the whole tensor. For an allgather this is what a rank receives, for a gather what
    the root has at the end, and for a reduce_scatter or an alltoall what a rank gives.
    """
    if team.ranks == 1:
        return Traffic("none")
    name = algorithm(collective, size, team.ranks)
    return _ALGORITHMS[collective, name](size, team)


def algorithm(collective: str, size: float, ranks: int) -> str:
    if collective == "alltoall" and size < _BRUCK_PART * ranks:
        return "bruck"
    chosen = next(
        name
        for named, high, allowed, name in _rules()
        if named == collective and size <= high and allowed[0] <= ranks <= allowed[1]
    )
    return "ring" if chosen == "neighbor" and ranks % 2 else chosen


@functools.cache
def _rules() -> tuple[tuple[str, float, tuple[float, float], str], ...]:
    """Each is: collective, most bytes, fewest and most ranks, algorithm. The rules of a collective are
    sorted by size, so the first one that fits counts."""
    found = []
    for rule in f"{algorithms.OVER_TCP}#{UCC_RULES}".split("#"):
        collective, sizes, *others = rule.split(":")
        high = sizes.partition("-")[2]
        ranks = next((part.strip("[]") for part in others if part.startswith("[")), "1-inf")
        low, _, most = ranks.partition("-")
        limits = (float(low), float(most or low))
        most_bytes = float(high) if high == "inf" else config.size(high)
        found.append((collective, most_bytes, limits, others[-1].lstrip("@")))
    return tuple(found)


@dataclass(frozen=True)
class _Round:
    """A step of a knomial pattern, in which groups of `radix` ranks exchange. All counts are messages."""

    radix: int
    crossing: tuple[int, ...]
    """What each host sends to other hosts."""
    from_root: tuple[int, ...]
    """What each host sends to other hosts if only ranks send that have data of the root."""
    of_host: float
    """What an average host sends to all ranks."""
    of_rank: int


@dataclass(frozen=True)
class _Pattern:
    rounds: tuple[_Round, ...]
    extra: _Round | None
    """The step in which the ranks that are left over give their data to a neighbour."""

    def steps(self, there_and_back: bool = False) -> tuple[int, int]:
        """The numbers of far and of near steps, with the steps of the ranks that are left over."""
        extra = [self.extra] * 2 if self.extra else []
        every = [*self.rounds, *(self.rounds if there_and_back else ()), *extra]
        far = sum(any(each.crossing) for each in every)
        return far, len(every) - far


@functools.lru_cache(maxsize=64)
def _pattern(team: Team, radix: int) -> _Pattern:
    """As UCC pairs ranks: neighbours first, then ranks at a distance of `radix`, and so on."""
    radix = min(radix, team.ranks)
    full = _full(team.ranks, radix)
    extras = left_over(team.ranks, radix)
    members = team.ranks - extras

    def host(member: int) -> int:
        return (2 * member if member < extras else member + extras) // team.per_host

    rounds = []
    distance = 1
    while distance < members:
        here = members // full if distance == full else radix
        sent, crossing, from_root = 0, [0] * team.hosts, [0] * team.hosts
        for member, peer in _pairs(members, radix, distance):
            home = host(member)
            sent += 1
            if home != host(peer):
                crossing[home] += 1
                from_root[home] += member < distance
        rounds.append(_Round(here, tuple(crossing), tuple(from_root), sent / team.hosts, here - 1))
        distance *= radix
    if not extras:
        return _Pattern(tuple(rounds), None)
    split = [0] * team.hosts
    for even in range(0, 2 * extras, 2):
        split[(even + 1) // team.per_host] += even // team.per_host != (even + 1) // team.per_host
    extra = _Round(1, tuple(split), (0,) * team.hosts, extras / team.hosts, 1)
    return _Pattern(tuple(rounds), extra)


def _pairs(members: int, radix: int, distance: int) -> Iterator[tuple[int, int]]:
    group = distance * radix
    for member in range(members):
        first = member // group * group
        for step in range(1, radix):
            peer = first + (member + step * distance) % group
            if peer < members:
                yield member, peer


class _Divided:
    """What is sent and reduced if each round of a pattern divides the data by its radix.

    In the first round, neighbours exchange the largest parts. With `far_first`, these are the ranks that
    are farthest from each other instead.
    """

    def __init__(self, pattern: _Pattern, size: float, team: Team, far_first: bool = False) -> None:
        self.pattern = pattern
        self.links = [0.0] * team.hosts
        self.from_root = [0.0] * team.hosts
        self.sent = self.reduced = 0.0
        block = size
        for each in reversed(pattern.rounds) if far_first else pattern.rounds:
            part = block / each.radix
            self._add(each, part)
            self.from_root = _added(self.from_root, each.from_root, part)
            self.reduced += team.per_host * block
            block = part
        if pattern.extra:
            self._add(pattern.extra, size)
            self.reduced += 2 * pattern.extra.of_host * size

    def _add(self, each: _Round, part: float) -> None:
        self.links = _added(self.links, each.crossing, part)
        self.sent += each.of_host * part

    def traffic(self, name: str, halves: int = 1, *, reduces: bool = False, scratch: float = 0) -> Traffic:
        """The cost, with `halves` = 2 if the data goes back the same way."""
        link = halves * max(self.links)
        return self._as_traffic(name, link, halves * self.sent - link, halves, reduces, scratch)

    def with_root(self, name: str, *, reduces: bool = False, scratch: float = 0) -> Traffic:
        """The cost if the root also gives the parts out before, or gets them afterwards."""
        link = max(map(sum, zip(self.links, self.from_root, strict=True)))
        return self._as_traffic(name, link, self.sent - max(self.links), 2, reduces, scratch)

    def _as_traffic(
        self, name: str, link: float, inside: float, halves: int, reduces: bool, scratch: float
    ) -> Traffic:
        far, near = self.pattern.steps(there_and_back=halves == 2)
        reduced = self.reduced if reduces else 0.0
        messages = _more(self.pattern, halves)
        return Traffic(name, link, max(0.0, inside), reduced, far, near, messages, scratch)


def _added(sums: list[float], counts: tuple[int, ...], part: float) -> list[float]:
    return [before + count * part for before, count in zip(sums, counts, strict=True)]


def _more(pattern: _Pattern, halves: int = 1) -> int:
    return halves * sum(each.of_rank - 1 for each in pattern.rounds)


def _sra_knomial(size: float, team: Team) -> Traffic:
    divided = _Divided(_pattern(team, team.radix), size, team)
    return divided.traffic("sra_knomial", 2, reduces=True, scratch=size)


def _knomial_all_reduce(size: float, team: Team) -> Traffic:
    """Ranks exchange all data in each round."""
    pattern = _pattern(team, team.radix)
    every = [*pattern.rounds, *([pattern.extra] * 2 if pattern.extra else [])]
    link = size * max(map(sum, zip(*(each.crossing for each in every), strict=True)))
    inside = max(0.0, size * sum(each.of_host for each in every) - link)
    reduced = size * team.per_host * sum(each.radix for each in pattern.rounds)
    far, near = pattern.steps()
    return Traffic("knomial", link, inside, reduced, far, near, _more(pattern), (team.radix - 1) * size)


def _knomial_all_gather(size: float, team: Team) -> Traffic:
    return _Divided(_pattern(team, team.radix), size, team, far_first=True).traffic("knomial")


def _knomial_reduce_scatter(size: float, team: Team) -> Traffic:
    divided = _Divided(_pattern(team, _RADIX), size, team, far_first=True)
    return divided.traffic("knomial", reduces=True, scratch=size)


def _ring(size: float, team: Team, reduced: float = 0, messages: int = 0, scratch: float = 0) -> Traffic:
    """Each rank passes on what it received, to the next rank."""
    steps = team.ranks - 1
    passed = size * steps / team.ranks
    inside = passed * (team.per_host - 1)
    far, near = (steps, 0) if team.hosts > 1 else (0, steps)
    link = passed if team.hosts > 1 else 0.0
    return Traffic("ring", link, inside, reduced, far, near, messages, scratch)


def _ring_all_gather(size: float, team: Team) -> Traffic:
    return _ring(size, team)


def _ring_reduce_scatter(size: float, team: Team) -> Traffic:
    """Half of the data goes in each direction."""
    steps = team.ranks - 1
    reduced = 2 * team.per_host * size * steps / team.ranks
    return _ring(size, team, reduced, steps, 6 * size / team.ranks)


def _neighbor(size: float, team: Team) -> Traffic:
    """A rank exchanges two parts with the next rank, then with the rank before, and so on. With an even
    number of ranks on a host, only every other step crosses hosts, at both ends of a host at once."""
    steps = team.ranks // 2
    total = team.per_host * size * (team.ranks - 1) / team.ranks
    if team.hosts == 1:
        return Traffic("neighbor", 0, total, near=steps)
    if team.per_host % 2:
        far, link = steps, size * (team.ranks - 1) / team.ranks
    else:
        far = steps // 2
        link = 4 * far * size / team.ranks
    return Traffic("neighbor", link, total - link, far=far, near=steps - far)


def _tree(size: float, team: Team, reduces: bool) -> Traffic:
    """All data goes from the root down a tree or, if the tree reduces, up to the root."""
    crossing = far = near = inner = 0
    distance = 1
    while distance < team.ranks:
        out = [0] * team.hosts
        for parent in range(0, team.ranks, distance * _RADIX):
            end = min(team.ranks, parent + distance * _RADIX)
            for child in range(parent + distance, end, distance):
                home = parent // team.per_host
                out[home] += home != child // team.per_host
                inner += home == child // team.per_host
        crossing += max(out)
        far, near = far + (max(out) > 0), near + (max(out) == 0)
        distance *= _RADIX
    reduced = size * (team.ranks + team.ranks // _RADIX) / team.hosts if reduces else 0.0
    messages = (far + near) * (_RADIX - 2)
    scratch = size * _RADIX if reduces else 0.0
    return Traffic(
        "knomial", size * crossing, size * inner / team.hosts, reduced, far, near, messages, scratch
    )


def _sag_knomial(size: float, team: Team) -> Traffic:
    """The root gives each rank a part, and then all ranks gather the parts."""
    return _Divided(_pattern(team, team.radix), size, team).with_root("sag_knomial")


def _srg(size: float, team: Team) -> Traffic:
    """Each rank reduces a part, and then the root gathers the parts."""
    divided = _Divided(_pattern(team, _RADIX), size, team)
    return divided.with_root("srg", reduces=True, scratch=2 * size)


def _gather(size: float, team: Team) -> Traffic:
    """One rank sends its part to the root. The team has two ranks, on two hosts."""
    return Traffic("knomial", size / 2, far=1)


def _bruck(size: float, team: Team) -> Traffic:
    """In each step a rank sends half of its data. The team has one rank on each host."""
    steps = math.ceil(math.log2(team.ranks))
    return Traffic("bruck", size / 2 * steps, far=steps, scratch=size)


def _pairwise(size: float, team: Team) -> Traffic:
    """A rank sends a part to each other rank. The team has one rank on each host."""
    link = size * (team.ranks - 1) / team.ranks
    if size > _LINEAR_BYTES and team.ranks > _LINEAR_RANKS:
        return Traffic("pairwise", link, far=team.ranks - 1)
    return Traffic("pairwise", link, far=1, messages=team.ranks - 2)


def _barrier(_: float, team: Team) -> Traffic:
    pattern = _pattern(team, _BARRIER_RADIX)
    far, near = pattern.steps()
    return Traffic("knomial", far=far, near=near, messages=_more(pattern))


_ALGORITHMS: dict[tuple[str, str], Callable[[float, Team], Traffic]] = {
    ("allreduce", "knomial"): _knomial_all_reduce,
    ("allreduce", "sra_knomial"): _sra_knomial,
    ("allgather", "knomial"): _knomial_all_gather,
    ("allgather", "neighbor"): _neighbor,
    ("allgather", "ring"): _ring_all_gather,
    ("alltoall", "bruck"): _bruck,
    ("alltoall", "pairwise"): _pairwise,
    ("barrier", "knomial"): _barrier,
    ("bcast", "knomial"): lambda size, team: _tree(size, team, False),
    ("bcast", "sag_knomial"): _sag_knomial,
    ("gather", "knomial"): _gather,
    ("reduce", "knomial"): lambda size, team: _tree(size, team, True),
    ("reduce", "srg"): _srg,
    ("reduce_scatter", "knomial"): _knomial_reduce_scatter,
    ("reduce_scatter", "ring"): _ring_reduce_scatter,
}
