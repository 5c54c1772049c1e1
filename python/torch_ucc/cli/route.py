"""`torch-ucc plan --op OP --bytes N`: which way such a call goes, asked of the libraries by making it, on
ranks that are started here or, under torchrun, on those of the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from torch_ucc._style import bold, table
from torch_ucc.topology.routes import Route

_NO_LIMIT = "inf"


def start(op: str, size: int, ranks: int, as_data: bool) -> int:
    """On so many ranks of this host, which do `report()`. Returns the exit status."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "torch_ucc", "plan", "--op", op]
    command += [*(["--bytes", str(size)] if size else []), *(["--json"] if as_data else [])]
    return subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode


def report(op: str, size: int, as_data: bool) -> int:
    """On every rank that torchrun started. Returns the exit status."""
    import torch.distributed as dist

    from torch_ucc.topology import ask_routes

    with tempfile.TemporaryDirectory(prefix="torch-ucc-") as name:
        folder = Path(name)
        ask_routes.listen(folder)
        dist.init_process_group("ucc")
        try:
            route = ask_routes.ask(op, size, folder)
            is_first = dist.get_rank() == 0
        except ValueError as error:
            print(f"torch-ucc plan: {error}", file=sys.stderr)
            return 2
        finally:
            dist.destroy_process_group()
    if is_first:
        print(json.dumps(asdict(route), indent=1) if as_data else text(route), flush=True)
    return 0


def text(route: Route) -> str:
    of = f" of {size_text(route.bytes)}" if route.bytes else ""
    pieces = len(route.collectives)
    cut = f", in {pieces} pieces" if pieces > 1 else ""
    size = f", {size_text(route.message_bytes)} each" if route.message_bytes else ""
    rows = [("torch-ucc", f"{route.op}{of}", f"{route.way}{size}{cut}")]
    for one, group in groupby(route.collectives):
        count = len(list(group))
        times = f"{count} x " if pieces > 1 else ""
        sizes = f" of {size_text(one.bytes)}" if one.bytes else ""
        how = f", algorithm {one.algorithm} (for {one.range} bytes)" if one.algorithm else ""
        rows.append(("UCC", f"{times}{one.name}{sizes}", f"{one.by}{how}"))
    for each in route.protocols:
        last = _NO_LIMIT if each.last is None else str(each.last)
        what = f"messages of {each.first}..{last} bytes"
        rows.append((f"UCX, {each.peers}", what, f"{each.how} over {each.over}"))
    ranks = f"{route.ranks} rank{'s' * (route.ranks > 1)}"
    head = bold(f"{route.op}{of} on {ranks}, as it ran:")
    return f"{head}\n\n{table(('layer', 'operation', 'path'), rows)}"


def size_text(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count and count % (1 << bits) == 0:
            return f"{count >> bits} {unit}"
    return f"{count} B"


def names() -> Sequence[str]:
    from torch_ucc.topology.ask_routes import CALLS

    return list(CALLS)
