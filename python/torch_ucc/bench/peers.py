"""Who is measured, and how the ranks of each are started."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from torch_ucc.bench.cases import MESSAGES, OF_LISTS, OPS, Case
from torch_ucc.bench.libraries.library import ITEM_BYTES
from torch_ucc.bench.places import Place

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Gap:
    """Dtypes that a peer cannot do, in which ops, and why."""

    dtypes: frozenset[str]
    why: str
    ops: frozenset[str] = frozenset(OPS)


@dataclass(frozen=True)
class Peer:
    """One that is not torch's has an environment of its own. `launcher` starts all ranks of an MPI peer.

    `between`: the same between hosts, if it can. `lacks`: the ops that it cannot do. `gaps`: the dtypes that
    it cannot do. `profile`: of torch_ucc, the one that is applied; else none is. `on_request`: measured only
    where it is named, or for a report. `is_made`: by ci/bench, which every peer with an environment of its
    own is. `one_host`: all ranks must be on one. `backend`: what the ranks are told to measure, if that is
    not the name.
    """

    name: str
    is_torch: bool = True
    launcher: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    lacks: frozenset[str] = frozenset()
    profile: str = ""
    on_request: bool = False
    is_made: bool = False
    one_host: bool = False
    backend: str = ""
    gaps: tuple[Gap, ...] = ()

    def why_not(self, case: Case) -> str:
        """Why the peer cannot do the op of this case with its dtype; empty if it can."""
        found = (gap.why for gap in self.gaps if case.dtype in gap.dtypes and case.op in gap.ops)
        return next(found, "") if case.nbytes else ""

    @property
    def spans_hosts(self) -> bool:
        return not self.one_host and (not self.launcher or bool(self.between))


FLOAT8 = frozenset({"float8_e4m3fn"})
ONLY_FLOAT32 = Gap(frozenset(ITEM_BYTES) - {"float32"}, "the loops of C know only float32")
NO_BFLOAT16 = Gap(FLOAT8 | {"bfloat16"}, "neither numpy nor mpi4py has it")
HYDRA = ("mpiexec", "-launcher", "fork", "-iface", "lo")
INTEL = ("mpiexec", "-genv", "I_MPI_FABRICS", "shm", "-n")

PEERS = {
    peer.name: peer
    for peer in (
        Peer("ucc"),
        Peer("gloo"),
        Peer("fake", lacks=frozenset({"any_source"})),
        # UCC and UCX in loops of C, nothing above them: what there is to reach.
        Peer("alone", lacks=OF_LISTS, on_request=True, is_made=True,
             gaps=(ONLY_FLOAT32,)),
        # Three collectives through shared memory, in loops of C: what there is to reach on one host.
        Peer("floor", lacks=frozenset(OPS) - {"all_reduce", "broadcast", "barrier"}, on_request=True,
             is_made=True, one_host=True, gaps=(ONLY_FLOAT32,)),
        # Shared memory only; the binding of ranks to cores is left to each MPI, so that each is at its best.
        Peer("openmpi", is_torch=False, is_made=True, backend="mpi", gaps=(NO_BFLOAT16,),
             launcher=("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1",
                       "--mca", "btl", "self,sm", "-n"),
             # Each host would bind its first rank to the first core, which is the same one.
             between=("mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "pml", "ob1",
                      "--mca", "btl", "self,sm,tcp", "--mca", "btl_tcp_if_include", "eth0", "-n"),
             lacks=OF_LISTS),
        Peer("mpich", is_torch=False, is_made=True, backend="mpi", gaps=(NO_BFLOAT16,), lacks=OF_LISTS,
             launcher=(*HYDRA, "-n")),
        # The environments of these three take 0.3 to 0.4 GB each.
        Peer("intel-mpi", is_torch=False, is_made=True, backend="mpi", gaps=(NO_BFLOAT16,), lacks=OF_LISTS,
             launcher=INTEL, on_request=True),
        # oneCCL over Intel MPI. Its interface in C has no barrier, and its operations all block.
        Peer("oneccl", is_torch=False, is_made=True, launcher=INTEL, on_request=True,
             lacks=OF_LISTS | {"gather", "scatter", "any_source", "both_ways", "barrier", "all_reduce_async"},
             gaps=(Gap(FLOAT8, "oneCCL has no float8"),)),
        # UCX from Python.
        Peer("ucxx", is_torch=False, is_made=True, lacks=frozenset(OPS) - MESSAGES, on_request=True,
             gaps=(Gap(FLOAT8 | {"bfloat16"}, "numpy has no such type"),)),
    )
}  # fmt: skip


TUNED = "+profile"


def tuned(profile: Path) -> Peer:
    """Ourselves, by this profile."""
    return Peer(f"ucc{TUNED}", backend="ucc", profile=str(profile.absolute()))


def made_by(factory: str) -> Peer:
    """An all_reduce that the function `package.module:function` makes. Raises ValueError for another form."""
    match = re.fullmatch(r"[A-Za-z_][\w.]*:([A-Za-z_]\w*)", factory)
    if match is None:
        raise ValueError(f"not a factory: {factory!r} (like package.module:function)")
    if match[1] in PEERS:
        raise ValueError(f"the factory {factory!r} has the name of a peer; give the function another name")
    return Peer(match[1], backend=factory, lacks=frozenset(OPS) - {"all_reduce"})


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
    backend = ["--backend", peer.backend or peer.name]
    home = peers_home().absolute() / peer.name / "bin"
    if peer.launcher:
        plain, between = (_at_home(words, home) for words in (peer.launcher, peer.between))
        launcher = place.launcher(plain, between, ranks)
        return [([*launcher, str(home / "python"), script, *backend, *arguments], {})]
    python = sys.executable if peer.is_torch else str(home / "python")
    command = [python, script, *backend, *arguments]
    common = {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": place.interface,
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        "TORCH_UCC_PROFILE": peer.profile,
        "TORCH_UCC_BENCH_PEERS": str(peers_home().absolute()),
        "TORCH_UCC_BENCH_BUSY": str(place.busy),
    }
    return [([*place.at(rank, ranks), *command], {**common, "RANK": str(rank)}) for rank in range(ranks)]


def _at_home(words: tuple[str, ...], home: Path) -> tuple[str, ...]:
    return (str(home / words[0]), *words[1:]) if words else ()
