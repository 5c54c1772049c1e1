"""`torch-ucc plan --op OP --size N`: an estimate of how long such a call takes on so many hosts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from torch_ucc import config
from torch_ucc._style import bold, table
from torch_ucc.cli.arguments import as_setting
from torch_ucc.cli.route import size_text
from torch_ucc.topology.estimate import OPS, Estimate, Host, Network, estimates
from torch_ucc.topology.traffic import Team

BANDWIDTH, LATENCY = "25gbit", "20us"
_MEASURED = ("copy", "reduce", "tcp", "step")
_OPTIONS = ("size", "bandwidth", "latency", "cores", *_MEASURED)
_MOST_RANKS = 1_000_000


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "an estimate",
        "With any of these options, the command estimates --op and does not call it. Without --hosts, it "
        "assumes one host, and without --ranks-per-host, one rank on each host. An estimate needs at least "
        "two ranks. Write numbers of bytes as 512k, 4m or 2g, and times as 400ns, 20us or 1.5ms.",
    )
    add = group.add_argument
    add(
        "--size",
        type=as_setting(config.size),
        help="bytes of the tensor; if each rank has a part of it, the bytes of all parts together",
    )
    add("--bandwidth", type=as_setting(rate), help=f"rate at which a host can send; default: {BANDWIDTH}")
    add(
        "--latency",
        type=as_setting(seconds),
        help=f"time of a small message between hosts; default: {LATENCY}",
    )
    add(
        "--cores",
        type=as_setting(number),
        help="number of cores for the ranks of a host; default: those that this process may use",
    )
    add("--copy", type=as_setting(config.size), help="bytes/s that a host can copy; default: measured here")
    add(
        "--reduce",
        type=as_setting(config.size),
        help="bytes/s that a host can read and add; default: measured here",
    )
    add(
        "--tcp",
        type=as_setting(config.size),
        help="bytes/s that the cores of a host can send and receive over TCP; default: measured here",
    )
    add(
        "--step",
        type=as_setting(seconds),
        help="time to notify a rank on the same host; default: measured here",
    )


def is_wanted(asked: argparse.Namespace) -> bool:
    return any(getattr(asked, name) is not None for name in _OPTIONS)


def run(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> int:
    """Print the estimate and return the exit status."""
    if asked.op not in OPS:
        parser.error(f"--op of an estimate is one of {', '.join(OPS)}")
    if asked.bytes or asked.replay:
        parser.error("an estimate takes --size, and neither --bytes nor --replay")
    if not asked.size and asked.op != "barrier":
        parser.error(f"an estimate of {asked.op} needs --size")
    team = Team(asked.hosts or 1, asked.ranks_per_host or 1)
    if not 1 < team.ranks <= _MOST_RANKS:
        parser.error(f"an estimate is for 2 to {_MOST_RANKS} ranks, not {team.ranks}: see --ranks-per-host")
    try:
        settings = config.from_environment()
        host = _host(asked, team)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"torch-ucc plan: {error}", file=sys.stderr)
        return 2
    network = Network(
        asked.bandwidth or rate(BANDWIDTH), seconds(LATENCY) if asked.latency is None else asked.latency
    )
    size = 0 if asked.op == "barrier" else asked.size
    found = estimates(asked.op, size, team, host, network, settings)
    if asked.json:
        print(json.dumps(as_data(asked.op, size, team, host, network, found), indent=1))
    else:
        print(text(asked.op, size, team, host, network, found, _sources(asked)))
    return 0


def _host(asked: argparse.Namespace, team: Team) -> Host:
    given = {name: getattr(asked, name) for name in _MEASURED if getattr(asked, name) is not None}
    if len(given) == len(_MEASURED):
        from torch_ucc.topology.cores import usable_here

        return Host(asked.cores or usable_here(), **given)
    from torch_ucc.topology.measure import host_here

    return replace(host_here(team.per_host, asked.size or 1, asked.cores), **given)


def _sources(asked: argparse.Namespace) -> dict[str, str]:
    def source(name: str, otherwise: str) -> str:
        return otherwise if getattr(asked, name) is None else "given"

    defaults = {"bandwidth": "default", "latency": "default", "cores": "this host"}
    return {name: source(name, defaults.get(name, "measured here")) for name in _OPTIONS}


def as_data(
    op: str, size: int, team: Team, host: Host, network: Network, found: Sequence[Estimate]
) -> dict[str, object]:
    return {
        "op": op,
        "bytes": size,
        **asdict(team),
        "host": asdict(host),
        "network": asdict(network),
        "ways": [asdict(each) for each in found],
    }


def text(
    op: str,
    size: int,
    team: Team,
    host: Host,
    network: Network,
    found: Sequence[Estimate],
    sources: dict[str, str],
) -> str:
    of = f" of {size_text(size)}" if size else ""
    hosts = f"{team.hosts} host{'s' * (team.hosts > 1)} with {team.per_host} rank{'s' * (team.per_host > 1)}"
    head = ["", *(f"{each.way}{' (chosen)' * each.is_taken}" for each in found)]
    rows: list[tuple[str, Sequence[str]]] = [
        ("time", [time_text(each.seconds) for each in found]),
        ("  copies and sums", [time_text(each.memory) for each in found]),
        ("  network", [time_text(each.network) for each in found]),
        ("  latency", [time_text(each.steps) for each in found]),
        ("busiest link carries", [amount_text(each.link_bytes) for each in found]),
        ("extra memory of a rank", [amount_text(each.rank_bytes) for each in found]),
        ("steps", [f"{each.step_count} in {each.pieces} piece{'s' * (each.pieces > 1)}" for each in found]),
        ("UCC between hosts", [each.by or "not used" for each in found]),
    ]
    constants = (
        ("copies", f"{host.copy / 1e9:.1f} GB/s, all ranks of a host together", sources["copy"]),
        ("sums", f"{host.reduce / 1e9:.1f} GB/s of input, all ranks of a host together", sources["reduce"]),
        ("TCP", f"{host.tcp / 1e9:.1f} GB/s sent and received by the cores of a host", sources["tcp"]),
        ("step on a host", time_text(host.step), sources["step"]),
        ("cores of a host", f"{host.cores:g}", sources["cores"]),
        (
            "network bandwidth",
            f"{network.bandwidth * 8 / 1e9:g} Gbit/s of a host, each way",
            sources["bandwidth"],
        ),
        ("network latency", time_text(network.latency), sources["latency"]),
    )
    lines = [
        bold(f"Estimate of {op}{of} on {hosts} each"),
        "",
        table(head, [[name, *cells] for name, cells in rows]),
        "",
    ]
    if any(each.pieces > 1 for each in found):
        lines += ["Pieces overlap, so the time is less than the sum of its parts.", ""]
    return "\n".join([*lines, table(("assumption", "value", "source"), constants)])


def time_text(duration: float) -> str:
    """With three digits, in a unit that suits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if duration >= factor:
            return (
                f"{duration / factor:.3g} {unit}"
                if duration < 1000 * factor
                else f"{duration / factor:.0f} {unit}"
            )
    return f"{duration * 1e6:.2f} us" if duration else "0"


def amount_text(count: float) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.1f} {unit}"
    return f"{count:.0f} B"


def rate(text: str) -> float:
    """Bytes in a second. Raises ValueError that says what a rate is."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg])bit(?:/s)?", text.strip().lower())
    if match is None or float(match[1]) == 0:
        raise ValueError("a rate above 0, such as 800mbit or 25gbit")
    return float(match[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[match[2]] / 8


def seconds(text: str) -> float:
    """Read "0.4us", which is too short for `config.duration`.

    Raises ValueError that says what a duration is.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)", text.strip())
    if match is None:
        raise ValueError("a duration such as 400ns, 20us or 1.5ms")
    return float(match[1]) * {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]


def number(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()) is None or float(text) == 0:
        raise ValueError("a number above 0, such as 8 or 0.5")
    return float(text)
