"""So many ranks on this host, forked from a process that has imported torch, which takes longest.

Prints what each asked of the store: to start, with the first operation, and for a further group.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from counting import Counting

LIMIT = timedelta(seconds=200)


def forked(run: Callable[[int], object]) -> tuple[int, int]:
    """A child's id, and where it writes what `run` returns; `run` may write there itself."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            os.write(writing, json.dumps(run(writing)).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    return child, reading


def serve(told: int) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(told, str(store.port).encode())
    time.sleep(3600)


def rank_of(size: int, rank: int, port: int) -> dict[str, int]:
    store = Counting(dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT))
    dist.init_process_group("ucc", store=store, rank=rank, world_size=size, timeout=LIMIT)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    start = store.take()
    dist.all_reduce(tensor, group=dist.new_group())
    assert tensor.tolist() == [size**2] * 3
    group = store.take()
    dist.destroy_process_group()
    return {"start": start, "group": group}


def main(size: int) -> None:
    server, told = forked(serve)
    port = int(os.read(told, 10))
    ranks = [forked(lambda _, rank=rank: rank_of(size, rank, port)) for rank in range(size)]  # type: ignore[misc]
    asked = [json.loads(os.read(reading, 1000)) for _, reading in ranks]
    os.kill(server, 9)
    print(json.dumps({what: [each[what] for each in asked] for what in ("start", "group")}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
