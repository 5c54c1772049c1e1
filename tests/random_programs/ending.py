"""The end of a rank: it is killed or leaves, with operations in flight or after its last one.

The others must get right data or an error, never false data, and groups without it must go on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from random_programs import rank as ranks
from random_programs.program import BASES, Draw, Program, Step, Thread, legal
from random_programs.rank import LIMIT, MINE, DifferenceError, Player

HOWS = ("killed", "killed", "killed when done", "left")
NOT_IN_FLIGHT = ("wait", "fill", "barrier", "refused", "refused batch")
SOONER_S = 45.0
"""An error that takes longer than this may be one of a timeout."""


@dataclass(frozen=True)
class Ending:
    program: Program  # a thread for each operation in flight: each has tensors of its own
    last: Program  # what those that are left do in the last of the groups, if they are several
    victim: int
    called: int  # how many of the operations the victim calls
    how: str

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.program.ranks) if rank != self.victim)

    @property
    def size(self) -> int:
        return len(self.program.threads) + self.last.size

    def is_right(self, number: int) -> bool:
        """Whether an operation may not fail: the victim is not needed, or has done all of its part."""
        (step,) = self.program.threads[number].steps
        done = self.how != "killed" and self.called == len(self.program.threads)
        return done or self.victim not in self.program.groups[step.group]

    def smaller(self) -> Iterator[Ending]:
        threads, steps = self.program.threads, self.last.threads[0].steps
        for i in range(len(threads)):
            kept = replace(self.program, threads=threads[:i] + threads[i + 1 :])
            yield replace(self, program=kept, called=self.called - (i < self.called))
        for i in range(len(steps)):
            if steps[i].op != "wait":
                yield replace(
                    self, last=legal(replace(self.last, threads=(Thread(steps[:i] + steps[i + 1 :]),)))
                )

    def __str__(self) -> str:
        return (
            f"rank {self.victim} is {self.how}, {self.called} called; each thread one operation in flight\n"
            f"{self.program}\nthen\n{self.last}"
        )


def drawn(seed: int, number: int, ranks: int) -> Ending:
    name = f"{seed} {number} ending"
    draw, source = random.Random(name), Draw(name, ranks)
    victim, everybody = draw.randrange(ranks), tuple(range(ranks))
    survivors = tuple(rank for rank in everybody if rank != victim)
    # Each survivor is in as many: torch numbers a group that only its members make by how many they have.
    groups = [everybody] * draw.randint(1, 2)
    if draw.random() < 0.5:
        groups += [(min(rank, victim), max(rank, victim)) for rank in survivors]
    groups.append(survivors)
    dtype = draw.choice(("float32", "int64", "bfloat16", "uint8"))
    unit = draw.choice((1, 40, 1000, 1000, 70_000, 300_000))
    program = Program(dtype, unit, ranks, tuple(groups))

    def in_flight() -> Step:
        while True:
            step = source.step(program, draw.randrange(len(groups) - 1))
            if step.op not in NOT_IN_FLIGHT:
                return replace(step, is_async=True)

    threads = tuple(Thread((in_flight(),)) for _ in range(draw.randint(1, 6)))
    steps = tuple(source.step(program, len(groups) - 1) for _ in range(6)) if ranks > 2 else ()
    called = draw.choice((len(threads), len(threads), draw.randint(0, len(threads))))
    last = legal(replace(program, threads=(Thread(steps),)))
    return Ending(replace(program, threads=threads), last, victim, called, draw.choice(HOWS))


class End:
    """An ending, on one rank."""

    def __init__(self, ending: Ending, key: str) -> None:
        self.ending, self.key = ending, key
        self.rank = dist.get_rank()
        program = ending.program
        self.groups = [dist.new_group(list(members), timeout=LIMIT) for members in program.groups]
        self.short = dist.new_group(list(ending.survivors), timeout=timedelta(seconds=5))
        self.players = [Player(program, i, key, self.groups) for i in range(len(program.threads))]
        self.meet()
        self.lost: list[torch.Tensor] = []
        self.doing = ""

    def meet(self) -> None:
        """A rank that ends while another still makes a group ends that group, too."""
        store = dist.distributed_c10d._get_default_store()
        keys = [f"{self.key}/met/{rank}" for rank in range(self.ending.program.ranks)]
        store.set(keys[self.rank], "here")
        if self.rank == self.ending.victim:
            store.wait(keys, LIMIT)

    def is_mine(self, player: Player) -> bool:
        return self.rank in self.ending.program.groups[player.steps[0].group]

    def start(self, player: Player) -> None:
        if self.is_mine(player):
            player.call(player.steps[0])

    def of_the_victim(self) -> None:
        called = self.players[: self.ending.called]
        self.doing = "what it does before its end"
        for player in called:
            self.start(player)
        if self.ending.how == "killed":
            time.sleep(random.choice((0, 0.001, 0.01)))
            os.kill(os.getpid(), signal.SIGKILL)
        for player in called:
            for each in player.flying:
                each.work.wait()
        if self.ending.how == "killed when done":
            os.kill(os.getpid(), signal.SIGKILL)
        dist.destroy_process_group()

    def of_a_survivor(self) -> None:
        failed: dict[int, str] = {}
        for number, player in enumerate(self.players):
            self.doing = f"start of operation {number}"
            try:
                self.start(player)
            except dist.DistBackendError as error:
                failed[number] = str(error)
        for number, player in enumerate(self.players):
            self.doing = f"end of operation {number} ({player.steps[0]})"
            for each in player.flying:
                try:
                    each.work.wait()
                except dist.DistBackendError as error:
                    failed[number] = str(error)
            player.flying = []
            if number in failed:
                if self.ending.is_right(number):
                    raise DifferenceError(f"failed for no reason: {failed[number]}")
                self.take_back(player.bases)
            elif self.is_mine(player):
                player.reference.step(player.steps[0])
                player.compare(set(range(BASES)))
        self.later_ones_fail()
        self.others_go_on()
        for tensor in self.lost:
            if not bool((tensor == MINE).all()):
                raise DifferenceError("a tensor of an operation that had failed was written to")

    def take_back(self, tensors: list[torch.Tensor]) -> None:
        """Those of an operation that failed are the program's again."""
        for i, tensor in enumerate(tensors):
            if i % 2:
                tensor.untyped_storage().resize_(0)
            else:
                self.lost.append(tensor.fill_(MINE))

    def later_ones_fail(self) -> None:
        for number, members in enumerate(self.ending.program.groups):
            if self.rank not in members or self.ending.victim not in members:
                continue
            self.doing = f"all_reduce in group {number} without rank {self.ending.victim}"
            tensor, began = torch.ones(1000), time.monotonic()
            try:
                dist.all_reduce(tensor, group=self.groups[number])
            except dist.DistBackendError:
                self.take_back([tensor])
            else:
                raise DifferenceError("it succeeded")
            if time.monotonic() - began > SOONER_S:
                raise DifferenceError("its error came late")

    def others_go_on(self) -> None:
        if len(self.ending.survivors) < 2:
            return
        last, groups = self.ending.last, self.groups
        if self.ending.how == "killed":
            self.doing = "all_reduce in the old world of those that are left"
            self.move_what_is_late()
            self.doing = "a new world of those that are left"
            last, groups = self.renewed()
        player = Player(last, 0, f"{self.key}/last", groups)
        self.doing = "steps of those that are left"
        player.play()
        self.doing = "all_reduce in a new group of those that are left"
        group = dist.new_group(list(last.groups[-1]), timeout=LIMIT, use_local_synchronization=True)
        tensor: Any = torch.ones(1000)
        dist.all_reduce(tensor, group=group)
        if not bool((tensor == len(self.ending.survivors)).all()):
            raise DifferenceError(f"the sum is {tensor.tolist()[:4]}")

    def move_what_is_late(self) -> None:
        """Messages of the rank that was killed come only while the others communicate in this world, which
        must go right, or time out: see renewed()."""
        for _ in range(6):
            tensor: Any = torch.ones(self.ending.program.unit)
            try:
                dist.all_reduce(tensor, group=self.short)
            except dist.DistBackendError as error:
                if "timed out" not in str(error):
                    raise
                return
            if not bool((tensor == len(self.ending.survivors)).all()):
                raise DifferenceError(f"the sum is {tensor.tolist()[:4]}")

    def renewed(self) -> tuple[Program, list[Any]]:
        """A rank that is killed while it copies to another one blocks the queue of that one in shared
        memory (docs/guarantees.md). The others go on in a world of their own, which has other queues."""
        survivors, last = self.ending.survivors, self.ending.last
        dist.destroy_process_group()
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group(
            "ucc",
            store=dist.PrefixStore(f"{self.key}/renewed", store),
            rank=survivors.index(self.rank),
            world_size=len(survivors),
            timeout=LIMIT,
        )
        steps = tuple(replace(step, group=0) for step in last.threads[0].steps)
        members = tuple(range(len(survivors)))
        return replace(last, groups=(members,), threads=(Thread(steps),)), [dist.group.WORLD]


def play(ending: Ending, key: str) -> str:
    """What is wrong on this rank. The victim is killed, or has left."""
    end = End(ending, key)
    try:
        end.of_the_victim() if end.rank == ending.victim else end.of_a_survivor()
    except Exception as error:
        return f"rank {end.rank}, {end.doing}: {type(error).__name__}: {error}"
    return ""


def told(ending: Ending, number: int, folder: str) -> None:
    """Plays, and tells what was found."""
    ranks.report(folder, number, is_ending=True)
    found = play(ending, f"ending/{number}")
    if found:
        ranks.report(folder, number, found, is_ending=True)


def run(seed: int, first: int, seconds: float, most: int, folder: str) -> None:
    """Programs from the number `first` on, and then an ending, unless one of them differs."""
    count, right = ranks.run(seed, first, seconds, most, False, folder)
    if right:
        told(drawn(seed, first + count, dist.get_world_size()), first + count, folder)
