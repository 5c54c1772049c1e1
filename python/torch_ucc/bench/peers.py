"""Who is measured, and how the ranks of each are started."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from torch_ucc.bench.cases import MESSAGES, OF_LISTS, OPS
from torch_ucc.bench.places import Place

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Peer:
    """One that is not torch's has an environment of its own. `launcher` starts all ranks of an MPI peer.

    `between`: the same between hosts, if it can. `lacks`: the ops that it cannot do. `profile`: of torch_ucc,
    the one that is applied; else none is. `on_request`: measured only where it is named, or for a report.
    `is_made`: by ci/bench, which every peer with an environment of its own is.
    """

    name: str
    is_torch: bool = True
    launcher: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    lacks: frozenset[str] = frozenset()
    profile: str = ""
    on_request: bool = False
    is_made: bool = False

    @property
    def spans_hosts(self) -> bool:
        return not self.launcher or bool(self.between)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("ucc"),
        Peer("gloo"),
        Peer("fake", lacks=frozenset({"any_source"})),
        # UCC and UCX in loops of C, nothing above them: what there is to reach.
        Peer("alone", lacks=OF_LISTS, on_request=True, is_made=True),
        # Shared memory only; the binding of ranks to cores is left to each MPI, so that each is at its best.
        Peer("openmpi", is_torch=False, is_made=True,
             launcher=("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1",
                       "--mca", "btl", "self,sm", "-n"),
             # Each host would bind its first rank to the first core, which is the same one.
             between=("mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "pml", "ob1",
                      "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "eth0", "-n"),
             lacks=OF_LISTS),
        Peer("mpich", is_torch=False, is_made=True, lacks=OF_LISTS,
             launcher=("mpiexec", "-launcher", "fork", "-iface", "lo", "-n")),
        # UCX from Python. Its environment takes a third of a gigabyte.
        Peer("ucxx", is_torch=False, is_made=True, lacks=frozenset(OPS) - MESSAGES, on_request=True),
    )
}  # fmt: skip


TUNED = "+profile"


def tuned(profile: Path) -> Peer:
    """Ourselves, by this profile."""
    return Peer(f"ucc{TUNED}", profile=str(profile.absolute()))


def peers_home() -> Path:
    """Where `ci/bench` keeps the environments of the peers that are not torch's, one folder a peer."""
    return Path(os.environ.get("TORCH_UCC_BENCH_PEERS", ".deps/peers"))


Start = tuple[list[str], dict[str, str]]  # a command, and what it adds to the environment


def commands(
    peer: Peer, ranks: int, program: str, arguments: list[str], port: int, place: Place
) -> list[Start]:
    """The processes to start for `ranks` ranks of `peer`. `program` is a file of this folder.

    `port` is that of the place's TCPStore, which torch peers meet at.
    """
    script = str(HERE / program)
    home = peers_home().absolute() / peer.name / "bin"
    if peer.launcher:
        plain, between = (_at_home(words, home) for words in (peer.launcher, peer.between))
        launcher = place.launcher(plain, between, ranks)
        return [([*launcher, str(home / "python"), script, *arguments], {})]
    python = sys.executable if peer.is_torch else str(home / "python")
    command = [python, script, "--backend", peer.name.removesuffix(TUNED), *arguments]
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": place.interface,
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        "TORCH_UCC_PROFILE": peer.profile,
        "TORCH_UCC_BENCH_PEERS": str(peers_home().absolute()),
    }
    return [([*place.at(rank, ranks), *command], {**common, "RANK": str(rank)}) for rank in range(ranks)]


def _at_home(words: tuple[str, ...], home: Path) -> tuple[str, ...]:
    return (str(home / words[0]), *words[1:]) if words else ()
