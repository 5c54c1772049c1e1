"""Which faults strike whom and when, drawn from the seed alone.

A generation is a world of ranks: it lives from one `init_process_group` to the next. Its plan says how many
ranks it has, how many steps it may take, and what is ordered to happen to which of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Kind:
    """What a fault does to the rank that it strikes, and to the others."""

    ranks: int = 2  # so many at least in the world
    victims: int = 1
    when: str = "step"  # or "init", "destroy"
    operation: str | None = None  # of the step
    status: int | None = None  # with which the process ends, if it does
    harmless: bool = False  # nobody may notice


KILLED = -9

KINDS = {
    "killed in a step": Kind(status=KILLED),
    "killed in init": Kind(when="init", status=KILLED),
    "killed in new_group": Kind(operation="new_group", status=KILLED),
    "killed in transfers": Kind(operation="transfers", status=KILLED),
    "killed in destroy": Kind(when="destroy", status=KILLED),
    "two killed": Kind(ranks=3, victims=2, status=KILLED),
    "stopped for good": Kind(status=KILLED),
    "stopped for good in destroy": Kind(when="destroy", status=KILLED),
    "exited": Kind(status=3),
    "left at once": Kind(status=4),
    "raised": Kind(status=1),
    "aborted and came back": Kind(),
    "destroyed and came back": Kind(),
    "stopped and woken": Kind(harmless=True),
    "stopped and woken in init": Kind(when="init", harmless=True),
    "stopped and woken in destroy": Kind(when="destroy", harmless=True),
    "slow": Kind(harmless=True),
}


@dataclass(frozen=True)
class Order:
    kind: str
    victim: int  # a rank of the generation
    step: int  # counted from the first of the generation
    delay: float  # seconds after that moment; for those that something outside does to a process
    length: float  # seconds, of what passes


@dataclass(frozen=True)
class Plan:
    steps: int
    orders: list[Order]
    members: list[str] = field(default_factory=list)  # names of processes by rank
    timeout: float = 0.0
    last: bool = False

    def of(self, rank: int) -> list[Order]:
        return [order for order in self.orders if order.victim == rank]

    def ends(self, rank: int) -> int | None:
        """The status with which its process is to end, if it is."""
        return next((s for order in self.of(rank) if (s := KINDS[order.kind].status) is not None), None)

    def others(self) -> list[int]:
        """The ranks that no order strikes, where one ends during the steps: a group of theirs must go on."""
        kinds = [KINDS[order.kind] for order in self.orders]
        if not any(kind.status is not None and kind.when == "step" for kind in kinds):
            return []
        return sorted(set(range(len(self.members))) - {order.victim for order in self.orders})

    def harmless(self) -> bool:
        return all(KINDS[order.kind].harmless for order in self.orders)


class Schedule:
    """Without end. Every kind comes once before any comes twice."""

    def __init__(self, seed: int, ranks: int) -> None:
        self._draw = random.Random(f"{seed} {ranks}")
        self._ranks = ranks
        self._left: list[str] = []

    def next(self, survivors: list[str], fresh: list[str]) -> Plan:
        """Of the next generation: all survivors, and some of the fresh ones."""
        draw = self._draw
        kinds = [self._kind()]
        if KINDS[kinds[0]].harmless and draw.random() < 0.5:
            kinds.append(self._kind())  # one fault after the other, in the same generation
        least = max(2, *(KINDS[kind].ranks for kind in kinds))
        size = self._ranks if draw.random() < 0.7 else draw.randint(least, self._ranks)
        members = [*survivors, *fresh][: max(size, len(survivors))]
        draw.shuffle(members)
        orders, step = [], 0
        for kind in kinds:
            step += draw.randint(0, 8)
            for victim in draw.sample(range(len(members)), KINDS[kind].victims):
                within = 0.3 if KINDS[kind].when == "init" else 0.02
                delay, length = draw.choice((0.0, draw.uniform(0, within))), draw.uniform(0.05, 1.0)
                orders.append(Order(kind, victim, step, delay, length))
        return Plan(step + draw.randint(2, 12), orders, members)

    def _kind(self) -> str:
        if not self._left:
            self._left = [kind for kind, each in KINDS.items() if each.ranks <= self._ranks]
            self._draw.shuffle(self._left)
        return self._left.pop()
