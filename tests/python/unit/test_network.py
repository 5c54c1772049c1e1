"""Which host `torch-ucc status` says has a slow network, and when it says nothing."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from torch_ucc.status import network
from torch_ucc.status.network import Connection, slow_host

HOSTS = ("n0", "n1", "n2", "n3")
FAST, SLOW = 500_000_000, 10_000_000
SHORT_NS, LONG_NS = 100_000, 20_000_000


def connection(here: int, there: int, **more: object) -> Connection:
    fields = {"rtt_ns": SHORT_NS, "rate": FAST, "is_full": False, "idle_ms": 5, **more}
    return Connection(f"10.0.0.{here}", f"10.0.0.{there}", **fields)  # type: ignore[arg-type]


def job(
    count: int, *changes: tuple[int | None, int | None, dict[str, object]]
) -> dict[str, list[Connection]]:
    """All hosts are connected to all. A change is for connections from one host to one host, None: to all."""

    def fields(here: int, there: int) -> dict[str, object]:
        merged: dict[str, object] = {}
        for a, b, change in changes:
            if a in (None, here) and b in (None, there):
                merged |= change
        return merged

    return {
        HOSTS[here]: [
            connection(here, there, **fields(here, there)) for there in range(count) if there != here
        ]
        for here in range(count)
    }


def test_hosts_that_are_alike() -> None:
    assert slow_host(job(4)) is None
    assert slow_host(job(4, (None, None, {"rtt_ns": LONG_NS, "rate": SLOW, "is_full": True}))) is None


@pytest.mark.parametrize("count", [3, 4])
@pytest.mark.parametrize("slow", [0, 2])
def test_a_host_that_is_far_away(count: int, slow: int) -> None:
    far = {"rtt_ns": LONG_NS}
    named = slow_host(job(count, (slow, None, far), (None, slow, far)))
    assert named is not None
    host, why = named
    assert host == HOSTS[slow]
    assert "takes 20.00 ms or more" in why
    assert "between other hosts takes at most 100.0 us" in why


@pytest.mark.parametrize("count", [3, 4])
def test_a_host_that_sends_slowly(count: int) -> None:
    named = slow_host(job(count, (1, None, {"rate": SLOW, "is_full": True})))
    assert named is not None
    assert named[0] == "n1"
    assert named[1].startswith("host n1 sends ")


def test_a_host_that_receives_slowly() -> None:
    named = slow_host(job(4, (None, 1, {"rate": SLOW, "is_full": True})))
    assert named is not None
    assert named[1].startswith("host n1 receives ")


def test_two_hosts_accuse_nobody() -> None:
    """Either end of the link may be the cause."""
    slow = {"rate": SLOW, "is_full": True, "rtt_ns": LONG_NS}
    assert slow_host(job(2, (0, 1, slow))) is None


def test_one_slow_link_accuses_nobody() -> None:
    slow = {"rate": SLOW, "is_full": True, "rtt_ns": LONG_NS}
    assert slow_host(job(4, (0, 1, slow), (1, 0, slow))) is None


def test_two_slow_hosts_accuse_nobody() -> None:
    slow = {"rate": SLOW, "is_full": True}
    assert slow_host(job(4, (0, None, slow), (1, None, slow))) is None


def test_a_program_that_has_little_to_send_accuses_nobody() -> None:
    assert slow_host(job(4, (0, None, {"rate": 1000}))) is None


def test_a_host_that_sends_to_many_shares_what_it_has() -> None:
    """Each of three peers gets a third of what the others, who send to one, can send."""
    assert slow_host(job(4, (0, None, {"rate": FAST // 3, "is_full": True}))) is None


def test_what_is_long_ago_accuses_nobody() -> None:
    far = {"rtt_ns": LONG_NS, "idle_ms": 60_000}
    assert slow_host(job(4, (0, None, far), (None, 0, far))) is None


def test_a_rate_of_a_moment_ago_accuses_nobody() -> None:
    assert slow_host(job(4, (1, None, {"rate": SLOW, "is_full": True, "idle_ms": 1000}))) is None


def test_a_short_way_is_not_slow() -> None:
    near, far = {"rtt_ns": 20_000}, {"rtt_ns": 900_000}
    assert slow_host(job(4, (None, None, near), (0, None, far), (None, 0, far))) is None


def test_an_address_that_two_hosts_have_tells_nothing() -> None:
    far = {"rtt_ns": LONG_NS}
    made = job(3, (0, None, far), (None, 0, far))
    assert slow_host(made) is not None
    made["n1"].append(Connection("10.0.0.0", "10.0.0.9", SHORT_NS, FAST, False, 5))
    assert slow_host(made) is None


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection between two addresses, as between two hosts."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address, source_address=("127.0.0.2", 0)) as client:
            accepted, _ = server.accept()
            with accepted:
                yield client, accepted


def test_what_the_kernel_knows_of_a_connection(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    for _ in range(20):
        client.sendall(b"x" * 1000)
        accepted.recv(1000)
    found = [each for each in network.here() if (each.source, each.target) == ("127.0.0.2", "127.0.0.1")]
    if not found:
        pytest.skip("this kernel tells nothing of connections")
    info = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (rtt_us,) = struct.unpack_from("<I", info, 148)
    assert rtt_us * 1000 in {each.rtt_ns for each in found}
    assert any(0 < each.rate < 1 << 40 and each.idle_ms < 60_000 for each in found)


def test_broken_facts_are_no_connections() -> None:
    for facts in (b"", b"\0" * 200, b"\xff" * 200, struct.pack("<IHHII", 88, 20, 0, 0, 0) + b"\x02" * 72):
        assert list(network.decode(facts)) == []
