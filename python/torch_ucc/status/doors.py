"""Asks ranks of other hosts what the processes there do.

In a job of several hosts each rank listens for the connections by which ranks notice each other's end
(cpp/liveness/life_lines.h). A program that knows the rank's secret may ask there, too. The secret is in the
memory of the ranks that connect to that rank, which only their user can read.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

LIMIT_S = 1.5
"""For one host to answer."""
AT_ONCE = 3
"""Ranks of one host that are asked at once."""
_MAGIC = b"tuccline"
_VISITOR = (1 << 64) - 1
_NUMBER_BITS = 56


class Question(IntEnum):
    """What is asked (cpp/backend/job_facts.h)."""

    REPORT = 0
    """Of the host, with so many recent records of each process."""
    ASK_STACK = 1
    """Of a rank of the host, for its Python stack. The answer is empty if it offers none."""
    STACK = 2
    """What this rank has answered so far."""


@dataclass(frozen=True)
class Door:
    rank: int
    host: int
    hosts: str
    """Addresses of that host, separated by spaces."""
    port: int
    secret: str

    @property
    def knock(self) -> bytes:
        return bytes.fromhex(self.secret[:32])

    @property
    def answer(self) -> bytes:
        return bytes.fromhex(self.secret[32:])


def ask(
    doors: Mapping[int, Sequence[Door]], what: Question, number: int, limit_s: float = LIMIT_S
) -> dict[int, bytes | str]:
    """By number of the host: its answer, or why there is none."""
    return asyncio.run(_ask(doors, what << _NUMBER_BITS | number, limit_s))


async def _ask(doors: Mapping[int, Sequence[Door]], question: int, limit_s: float) -> dict[int, bytes | str]:
    answers = await asyncio.gather(*(_host(each, question, limit_s) for each in doors.values()))
    return dict(zip(doors, answers, strict=True))


async def _host(doors: Sequence[Door], question: int, limit_s: float) -> bytes | str:
    """Asks several of its ranks by all of their addresses at once; the first answer counts."""
    tries = {
        asyncio.create_task(_visit(door, address, question))
        for door in doors
        for address in door.hosts.split()
    }
    why = "it has no address"
    waiting = tries
    deadline = time.monotonic() + limit_s
    while waiting:
        left = max(0.0, deadline - time.monotonic())
        done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            ranks = sorted({door.rank for door in doors})
            why = f"no answer from rank {', '.join(map(str, ranks))} in {limit_s:g} s"
            break
        for each in done:
            error = each.exception()
            if error is None:
                await _end(waiting)
                return each.result()
            why = str(error) or type(error).__name__
    await _end(waiting)
    return why


async def _end(tasks: set[asyncio.Task[bytes]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _visit(door: Door, address: str, question: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, door.port)
    try:
        writer.write(_MAGIC + door.knock + struct.pack("<Q", _VISITOR))
        if await reader.readexactly(len(door.answer)) != door.answer:
            raise ValueError("it does not know the secret of the job")
        writer.write(struct.pack("<Q", question))
        (size,) = struct.unpack("<Q", await reader.readexactly(8))
        return await reader.readexactly(size)
    finally:
        writer.close()
