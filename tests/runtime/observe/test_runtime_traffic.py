"""The bytes that a rank sends are counted by the kernel, connection by connection."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.observe import traffic
from sailor_runtime.training.observe.traffic import HEADER_BYTES, Connection, TrafficMeter, connections

SENT = 300_000
TWO_NODES = ((6, 2, ((0, 3, 1), (3, 6, 1))),)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, closing(socket.socket()) as near:
        near.connect(server.getsockname())
        far, _ = server.accept()
        with closing(far):
            yield near, far


def test_bytes_sent_on_a_connection_are_read_from_the_kernel(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    left = SENT
    near.sendall(b"x" * SENT)
    while left:
        left -= len(far.recv(left))
    # Other tests' connections to other ports may have the same local port.
    ends = {(one.local, one.peer): one for one in connections()}
    there, back = ends[near.getsockname(), near.getpeername()], ends[far.getsockname(), far.getpeername()]
    # A header per packet; the other end has sent nothing but packets that confirm.
    assert SENT < there.sent_bytes < 1.1 * SENT
    assert 0 < back.sent_bytes < 0.1 * SENT
    assert back.sent_bytes % HEADER_BYTES == 0


def spec_of(folder: Path, *addresses: str) -> RunSpec:
    names = tuple(f"n{index}" for index in range(len(addresses)))
    spec = run_spec(TWO_NODES, directory=folder, node_of_rank=names)
    nodes = tuple(
        dataclasses.replace(node, address=address) for node, address in zip(spec.nodes, addresses, strict=True)
    )
    return dataclasses.replace(spec, nodes=nodes)


def test_bytes_are_counted_by_node_and_stay_counted_when_a_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, there, stranger = ("10.0.0.1", 1), ("10.0.0.2", 2), ("203.0.113.9", 3)
    now = [
        Connection("a", own, there, 100, 0, 1),
        Connection("b", own, there, 11, 0, 1),
        Connection("c", own, own, 5, 0, 1),
        Connection("d", own, stranger, 7, 0, 1),
    ]
    monkeypatch.setattr(traffic, "connections", lambda: iter(now))
    meter = TrafficMeter(spec_of(tmp_path, "10.0.0.1", "10.0.0.2"), 0)
    assert meter.read() == {"n1": 111}
    assert meter.read() is None, "it is not time yet"
    now[:2] = [Connection("b", own, there, 20, 0, 1)]
    assert meter.read(now=True) == {"n1": 120}
    now[:] = [Connection("e", own, there, 1, 0, 1)]
    assert meter.read(now=True) == {"n1": 121}


def test_packets_to_another_cloud_are_counted_with_what_the_tunnel_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, "10.0.0.1", "10.0.0.2")
    clouds = tuple(dataclasses.replace(node, cloud=name) for node, name in zip(spec.nodes, "ab", strict=True))
    sent = Connection("a", ("10.0.0.1", 1), ("10.0.0.2", 2), 1_420_000, 0, 1000)
    monkeypatch.setattr(traffic, "connections", lambda: iter([sent]))
    # 20 bytes of IPv4, 8 of UDP, 16 and 16 of WireGuard around each of 1,000 packets.
    assert TrafficMeter(dataclasses.replace(spec, nodes=clouds), 0).read() == {"n1": 1_480_000}
