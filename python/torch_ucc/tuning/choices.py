"""The candidates for a profile, and the cells that each of them could change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch_ucc import config
from torch_ucc.bench.cases import Case
from torch_ucc.topology.job import Job
from torch_ucc.topology.transports import why_no_cma
from torch_ucc.topology.user import tls
from torch_ucc.tuning.profile import Profile, Values, variables

KB, MB = 1 << 10, 1 << 20
SIZES = (4, 4 * KB, 64 * KB, MB)
COLLECTIVES = ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "reduce")
TUNE = "TL_UCP_TUNE"


@dataclass(frozen=True)
class Family:
    """Candidates of which one is chosen for each group of cells.

    `variants`: name -> group -> the values that it would put into the profile. A variant is measured with the
    values of all its groups at once. So the values of one group must not change the cells of another group.
    """

    name: str
    groups: Mapping[str, tuple[Case, ...]]
    variants: Mapping[str, Mapping[str, Values]]

    def cases(self, variant: str | None = None) -> list[Case]:
        """Return the cells that the variant could change, or without a variant all cells."""
        groups = self.groups if variant is None else self.variants[variant]
        return list(dict.fromkeys(case for group in groups for case in self.groups[group]))

    def values(self, variant: str) -> Values:
        return merged(*self.variants[variant].values())

    def is_open(self, environment: Mapping[str, str]) -> bool:
        """Return whether neither the environment nor a file of UCX or UCC sets what the family could set."""
        said = merged(*map(self.values, self.variants))
        libraries = [name for section in ("ucx", "ucc") for name in said.get(section, {})]
        ours = {config.PREFIX + name.upper() for name in said.get("settings", {})}
        passed_on = variables(Profile("", {}, said), environment)
        return not ours & environment.keys() and len(passed_on) == len(libraries)


def merged(*parts: Values) -> Values:
    """Return all values. Later parts have priority; the rules of `TUNE` are joined."""
    whole: Values = {}
    for part in parts:
        for section, values in part.items():
            into = whole.setdefault(section, {})
            for name, value in values.items():
                into[name] = f"{into[name]}#{value}" if name == TUNE and name in into else value
    return whole


def families(job: Job) -> list[Family]:
    """Return the families for this job. Those that are likely to gain most come first."""
    ranks, most = len(job.ranks), job.most_per_host()
    several = len(job.hosts) > 1
    has_cma = not any(map(why_no_cma, job.hosts))
    crowded = job.crowd() is not None
    of_size = [_pieces(crowded), _algorithms(ranks)]
    of_all = [
        *([_copies(job)] if most > 1 and has_cma else []),
        _rendezvous(),
        *([_radices(ranks)] if ranks > 2 else []),
        _waiting(spinning=not crowded),
    ]
    # Large operations of ranks that share cores take most of a budget and decide least.
    others = of_all + of_size if crowded else of_size + of_all
    return [*([_hierarchy()] if several and most > 1 else []), *others]


def cells(ops: Iterable[str], sizes: Iterable[int]) -> tuple[Case, ...]:
    wanted = tuple(sizes)
    return tuple(Case(op, size) for op in ops for size in wanted)


def _simple(name: str, cases: tuple[Case, ...], variants: Mapping[str, Values]) -> Family:
    """All cells decide together."""
    return Family(name, {"all": cases}, {variant: {"all": values} for variant, values in variants.items()})


def _hierarchy() -> Family:
    one_team: Values = {"settings": {"levels_from": "16g"}}
    return _simple(
        "one UCC team of all hosts",
        cells(COLLECTIVES, SIZES),
        {"one team": one_team, "hier": {**one_team, "ucc": {"CLS": "hier,basic"}}},
    )


def _pieces(crowded: bool) -> Family:
    sizes = ("256k", "512k", "2m", "4m")
    return _simple(
        "pieces of a large all_reduce",
        cells(["all_reduce"], (2 * MB, 8 * MB, *(() if crowded else (64 * MB,)))),
        {f"pieces of {size}": {"settings": {"segment_bytes": size}} for size in sizes},
    )


def _copies(job: Job) -> Family:
    """The other way than the plan's, which copies from process to process where ranks outnumber cores."""
    crowded = job.crowd() is not None
    ucx = dict([tls(cma=not crowded, tcp=len(job.hosts) > 1)])
    return _simple(
        "transports on a host",
        cells(("ping_pong", "all_to_all_single", *COLLECTIVES), SIZES),
        {"without cma" if crowded else "with cma": {"ucx": ucx}},
    )


def _rendezvous() -> Family:
    return _simple(
        "size from which a receiver fetches a message",
        cells(("ping_pong", "all_to_all_single", *COLLECTIVES), (4 * KB, 16 * KB, 64 * KB, MB)),
        {f"from {size}": {"ucx": {"RNDV_THRESH": size}} for size in ("4k", "16k", "64k", "256k")},
    )


# By op of the bench: its name in UCC, and UCC's algorithms that every build has.
_ALGORITHMS = {
    "all_reduce": ("allreduce", ("knomial", "sra_knomial", "ring", "dbt")),
    "broadcast": ("bcast", ("knomial", "sag_knomial", "dbt")),
    "all_gather_into_tensor": ("allgather", ("knomial", "ring", "bruck", "sparbit", "neighbor")),
    "reduce_scatter_tensor": ("reduce_scatter", ("ring", "knomial")),
    "reduce": ("reduce", ("knomial", "dbt", "srg")),
}


def _algorithms(ranks: int) -> Family:
    groups: dict[str, tuple[Case, ...]] = {}
    variants: dict[str, dict[str, Values]] = {}
    for op, (name, algorithms) in _ALGORITHMS.items():
        for size, between in ranges(SIZES).items():
            groups[f"{op} {size}"] = (Case(op, size),)
            for number, algorithm in enumerate(algorithms):
                # UCC goes by the size of the whole result.
                low, high = (edge * (ranks if name == "allgather" else 1) for edge in between)
                rule = f"{name}:{_edge(low)}-{_edge(high)}:@{algorithm}"
                of_variant = variants.setdefault(f"algorithm {number + 1}", {})
                of_variant[f"{op} {size}"] = {"ucc": {TUNE: rule}}
    return Family("algorithms by operation and size", groups, variants)


def ranges(sizes: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the range of sizes that each size stands for.

    It ends at the geometric mean with each neighbour. The range of the largest size ends as far above it as
    it begins below it, as a ratio. Larger sizes were not measured, so they are in no range.
    """
    ordered = sorted(sizes)
    between = [math.isqrt(a * b) for a, b in pairwise(ordered)]
    edges = [0, *between, ordered[-1] ** 2 // between[-1]]
    return {size: (edges[i], edges[i + 1]) for i, size in enumerate(ordered)}


def _edge(nbytes: int) -> str:
    return f"{nbytes // KB}k" if nbytes and nbytes % KB == 0 else str(nbytes)


_RADICES = {
    "all_reduce": ("ALLREDUCE_KN_RADIX", "ALLREDUCE_SRA_KN_RADIX"),
    "broadcast": ("BCAST_KN_RADIX", "BCAST_SAG_KN_RADIX"),
    "all_gather_into_tensor": ("ALLGATHER_KN_RADIX",),
    "reduce": ("REDUCE_KN_RADIX", "REDUCE_SRG_KN_RADIX"),
    "barrier": ("BARRIER_KN_RADIX",),
}


def _radices(ranks: int) -> Family:
    wanted = [radix for radix in (2, 3, 4, 8) if radix <= ranks]
    return Family(
        "radices of trees",
        {op: (Case(op, 0),) if op == "barrier" else cells([op], SIZES) for op in _RADICES},
        {
            f"radix {radix}": {
                op: {"ucc": {f"TL_UCP_{option}": str(radix) for option in options}}
                for op, options in _RADICES.items()
            }
            for radix in wanted
        },
    )


def _waiting(spinning: bool) -> Family:
    """`spinning`: nobody does where ranks outnumber cores."""
    spins = {f"spinning {time}": {"spin": time} for time in ("0us", "1ms")} if spinning else {}
    yields = {f"yielding {time}": {"yield_for": time} for time in ("200us", "20ms")}
    return _simple(
        "waiting",
        (*cells(("all_reduce", "broadcast", "ping_pong"), (4, 64 * KB, 8 * MB)), Case("barrier", 0)),
        {name: {"settings": settings} for name, settings in {**spins, **yields}.items()},
    )
