"""Counts the bytes that a rank sends to each node, from the kernel's statistics of the rank's connections.

gloo and NCCL send over TCP sockets of the rank's process, in any thread, so counting does not slow a step. EFA, which
NCCL uses only inside one zone, is not seen; traffic inside a zone is never billed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.pipeline.process_groups import World

Endpoint = tuple[str, int]

# linux/tcp.h, struct tcp_info: `tcpi_segs_out` since Linux 4.2, `tcpi_bytes_sent` (repeats included) and
# `tcpi_bytes_retrans` since 4.19.
_INFO_BYTES = 256
_SEGMENTS = struct.Struct("=136xI")
_BYTES = struct.Struct("=200xQQ")
# IPv4 and TCP with time stamps; clouds bill packets, not their content.
HEADER_BYTES = 52
# IPv4, UDP, and WireGuard's own header and authenticator, around each packet to another cloud.
TUNNEL_BYTES = 60

_FIRST_LOOK_S = 1.0
_LONGEST_S = 60.0


class Connection(NamedTuple):
    """A TCP connection of this process and its sent bytes; `inode` distinguishes it from one that replaces it.

    `sent_bytes` includes headers and `repeated_bytes`, the data that TCP sent more than once.
    """

    inode: str
    local: Endpoint
    peer: Endpoint
    sent_bytes: int
    repeated_bytes: int
    segments: int


class TrafficMeter:
    """The bytes sent to each node since this rank began, read at intervals: soon at first, later once a minute."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self._spec = spec
        self._own = spec.node_of(rank).id
        cloud = spec.node_of(rank).cloud
        self._in_tunnel = {node.id for node in spec.nodes if node.cloud != cloud}
        self._nodes = {node.address: node.id for node in spec.nodes}
        self._ends: dict[Endpoint, str] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._interval_s = _FIRST_LOOK_S
        self._due = 0.0

    def connect(self, world: World) -> None:
        """Learn the nodes at the other ends; a collective.

        Nodes on one machine have the same address, so their ranks tell each other which ends are theirs.
        """
        if not all(address.startswith("127.") for address in self._nodes):
            return
        everyone: list[Any] = [None] * world.size
        dist.all_gather_object(everyone, [one.local for one in connections()], group=world.everyone)
        self._ends = {tuple(end): self._spec.node_of(rank).id for rank, ends in enumerate(everyone) for end in ends}

    def read(self, *, now: bool = False) -> dict[str, int] | None:
        """Return the bytes by node if a reading is due or requested."""
        if not now and time.monotonic() < self._due:
            return None
        self._due = time.monotonic() + self._interval_s
        self._interval_s = min(_LONGEST_S, 2.0 * self._interval_s)
        for one in connections():
            node = self._ends.get(one.peer) or self._nodes.get(one.peer[0])
            if node is not None and node != self._own:
                around = TUNNEL_BYTES * one.segments if node in self._in_tunnel else 0
                self._seen[one.inode] = (node, one.sent_bytes + around)
        sent: dict[str, int] = {}
        for node, nbytes in self._seen.values():
            sent[node] = sent.get(node, 0) + nbytes
        return sent


def connections() -> Iterator[Connection]:
    """Yield the TCP connections of this process."""
    for entry in os.listdir("/proc/self/fd"):
        # Other threads open and close files meanwhile.
        with contextlib.suppress(OSError):
            inode = os.readlink(Path("/proc/self/fd") / entry)
            if inode.startswith("socket:"):
                found = _connection(inode, os.dup(int(entry)))
                if found is not None:
                    yield found


def _connection(inode: str, descriptor: int) -> Connection | None:
    try:
        one = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return None
        local, peer = _endpoint(one.getsockname()), _endpoint(one.getpeername())
        info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        if len(info) < _BYTES.size:
            return None
        (segments,), (nbytes, repeated) = _SEGMENTS.unpack_from(info), _BYTES.unpack_from(info)
    return Connection(
        inode=inode,
        local=local,
        peer=peer,
        sent_bytes=nbytes + HEADER_BYTES * segments,
        repeated_bytes=repeated,
        segments=segments,
    )


def _endpoint(name: tuple[Any, ...]) -> Endpoint:
    """Return address and port; IPv4 inside IPv6 as IPv4."""
    return str(name[0]).removeprefix("::ffff:"), int(name[1])
