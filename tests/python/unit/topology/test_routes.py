"""What is read from the logs of UCC and UCX. `tests/python/integration/test_route.py` reads real ones."""

from __future__ import annotations

import pytest
from torch_ucc._native import extension
from torch_ucc._torch import HAS_2_14
from torch_ucc.topology import routes
from torch_ucc.topology.plan import OTHER_HOST, SAME_HOST
from torch_ucc.topology.routes import BY_MESSAGES, BY_UCC, Collective, Protocol

SCORE_MAPS = """
[1] UCC  INFO  ===== COLL_SCORE_MAP (team_id 1, size 2) =====
[1] UCC  INFO  Allreduce:
	Host: {0..inf}:TL_UCP:10=ucc_tl_ucp_allreduce_ring_init
[1] UCC  INFO  ================================================
[1] UCC  INFO  ===== COLL_SCORE_MAP (team_id 2, size 2) =====
[1] UCC  INFO  Allgather:
	Host: {0..inf}:TL_UCP:10=ucc_tl_ucp_allgather_neighbor_init
[1] UCC  INFO  Allreduce:
	Cuda: {0..inf}:TL_NCCL:10=ucc_tl_nccl_allreduce_init
	Host: {0..4K}:TL_UCP:10=ucc_tl_ucp_allreduce_knomial_init {4K..inf}:TL_UCP:10=ucc_tl_ucp_allreduce_sra_knomial_init
[1] UCC  INFO  Bcast:
	Host: {0..4094}:CL_HIER:50=ucc_cl_hier_bcast_2step_init {4095}:CL_HIER:50=ucc_cl_hier_other_init {4K..inf}:TL_UCP:10=ucc_tl_ucp_coll_init
[1] UCC  INFO  ================================================
"""  # noqa: E501


def given(count: int, datatype: str = "uint8") -> Collective:
    buffer = f"{{0x7f, {count}, {datatype}, Host}}"
    buffers = f"src={buffer}, dst={buffer}"
    line = f"[1] UCC_COLL INFO coll_init: Allreduce sum: {buffers}; CL_BASIC {{TL_UCP}}, team_id 2"
    return routes.collectives(f"something\n{line}\n", SCORE_MAPS)[0]


def test_the_algorithm_is_that_of_the_size_on_its_team() -> None:
    assert given(64) == Collective("Allreduce", "CL_BASIC {TL_UCP}", 64, "allreduce_knomial", "0..4K")
    assert given(4096).algorithm == "allreduce_knomial"
    assert given(4097) == Collective(
        "Allreduce", "CL_BASIC {TL_UCP}", 4097, "allreduce_sra_knomial", "4K..inf"
    )
    assert given(1025, "float32").bytes == 4100 and given(1025, "float32").range == "4K..inf"


@pytest.mark.parametrize(("size", "algorithm"), [(1, "bcast_2step"), (4095, "other"), (4096, "")])
def test_one_of_a_layer_of_collectives(size: int, algorithm: str) -> None:
    line = f"coll_init: Bcast root 0: src={{0x7f, {size}, uint8, Host}}; CL_HIER {{TL_UCP}}, team_id 2"
    (one,) = routes.collectives(line, SCORE_MAPS)
    assert (one.by, one.algorithm) == ("CL_HIER {TL_UCP}", algorithm)


def test_what_ucc_does_not_say_is_not_guessed() -> None:
    line = "coll_init: Barrier; CL_BASIC {TL_UCP}, team_id 2"
    assert routes.collectives(line, SCORE_MAPS) == [Collective("Barrier", "CL_BASIC {TL_UCP}", 0, "", "")]
    assert routes.collectives("coll_post: req 0x1", SCORE_MAPS) == []


NEW_TABLES = """
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   | UCC_UCP_CONTEXT intra-node cfg#0                                    |
[1:0]   | tagged message by ucp_tag_send* from host memory                    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |   Range   |                Description                |   Config    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |     0..92 | eager short                               | sysv/memory |
[1:0]   |    8K..inf | (?) rendezvous zero-copy read from remote | cma/memory  |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   | UCC_UCP_CONTEXT intra-node cfg#0                                    |
[1:0]   | tagged message by ucp_tag_send*(multi) from host memory             |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |   Range   |                Description                |   Config    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |    0..inf | eager copy-in copy-out                    | sysv/memory |
[1:0]   +-----------+-------------------------------------------+-------------+
something else
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   | torch_ucc inter-node cfg#2                                          |
[1:0]   | tagged message by ucp_tag_send* from host memory                    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |      0..8K | eager short                               | tcp/eth0    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   | torch_ucc inter-node cfg#3                                          |
[1:0]   | tagged message by ucp_tag_send* from host memory                    |
[1:0]   +-----------+-------------------------------------------+-------------+
[1:0]   |     0..inf | eager zero-copy                           | tcp/eth0    |
[1:0]   +-----------+-------------------------------------------+-------------+
"""

OLD_TABLES = """
[1:0]   +----------------------------------+--------------------------------------------------+
[1:0]   | UCC_UCP_CONTEXT intra-node cfg#1 | tagged message by ucp_tag_send* from host memory |
[1:0]   +----------------------------------+-------------------------------------------+-------------+
[1:0]   |                            0..92 | eager short                               | sysv/memory |
[1:0]   |                          8K..inf | (?) rendezvous zero-copy read from remote | cma/memory  |
[1:0]   +----------------------------------+-------------------------------------------+-------------+
[1:0]   +----------------------------+--------------------------------------------------+
[1:0]   | torch_ucc inter-node cfg#3 | tagged message by ucp_tag_send* from host memory |
[1:0]   +----------------------------+-----------------+----------+
[1:0]   |                     0..inf | eager zero-copy | tcp/eth0 |
[1:0]   +----------------------------+-----------------+----------+
"""


@pytest.mark.parametrize("tables", [OLD_TABLES, NEW_TABLES], ids=["of UCX 1.21", "of UCX 1.22"])
def test_protocols_are_those_of_the_worker_that_carries_it(tables: str) -> None:
    assert routes.protocols(tables, BY_UCC) == [
        Protocol(SAME_HOST, 0, 92, "eager short", "sysv/memory"),
        Protocol(SAME_HOST, 8192, None, "rendezvous zero-copy read from remote", "cma/memory"),
    ]
    assert routes.protocols(tables, BY_MESSAGES) == [
        Protocol(OTHER_HOST, 0, None, "eager zero-copy", "tcp/eth0")
    ]


def test_a_protocol_covers_its_sizes() -> None:
    one = Protocol(SAME_HOST, 93, 8248, "", "")
    assert [one.covers(size) for size in (92, 93, 8248, 8249)] == [False, True, True, False]
    assert Protocol(SAME_HOST, 93, None, "", "").covers(1 << 40)


def test_every_operation_has_its_way() -> None:
    for in_memory in (False, True):
        known = routes.ways(in_memory).keys()
        if not HAS_2_14:  # before torch 2.14
            known -= {"gather_single"}
        assert known == set(extension.compiled().operations())
