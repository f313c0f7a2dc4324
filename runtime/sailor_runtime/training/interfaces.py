"""The network interfaces and fabrics of a node, for NCCL and gloo. Standard library only: torch is not imported yet."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, MutableMapping, Sequence
from pathlib import Path
from typing import Protocol

from sailor_runtime.spec import RunSpec

LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NAME_BYTES = 15
# Any port serves: nothing is sent.
_PORT = 9
_FABRICS = Path("/sys/class/infiniband")
_SUBNET = 19


class Store(Protocol):
    """The part of a torch store that ranks need to agree."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...


def interface_of(spec: RunSpec, rank: int) -> str | None:
    """Return the interface with the address of a rank's node; None if there is none, as behind address translation."""
    own = _resolved(spec.node_of(rank).address)
    others = [found for node in spec.nodes if (found := _resolved(node.address)) and not _is_loopback(found)]
    if own is None or (_is_loopback(own) and others):
        # Hosts files may name 127.0.1.1 for the host itself, so the way to another node decides.
        own = next(filter(None, map(_source_towards, others)), None)
    if own is not None and _is_loopback(own):
        return LOOPBACK
    return next((name for _, name in socket.if_nameindex() if own is not None and _address(name) == own), None)


def _resolved(address: str) -> str | None:
    try:
        return socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _source_towards(address: str) -> str | None:
    """Return the address from which this node reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.connect((address, _PORT))
        except OSError:
            return None
        return str(datagrams.getsockname()[0])


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        request = struct.pack("256s", name.encode()[:_NAME_BYTES])
        try:
            return socket.inet_ntoa(fcntl.ioctl(datagrams, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def fabrics(folder: Path = _FABRICS) -> set[str]:
    """Return the RDMA networks that the node's active ports are on: the kind of link and the subnet's prefix."""
    found = set()
    for port in sorted(folder.glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state"):
            subnet = _text(port / "gids" / "0")[:_SUBNET]
            # A port whose network is unknown is on none that others share.
            known = subnet if subnet.strip("0:") else f"of {port} on {socket.gethostname()}"
            found.add(f"{_text(port / 'link_layer')} {known}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def agree_on_network(
    store: Store, rank: int, size: int, own: Iterable[str], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Have NCCL use sockets on every rank unless all ranks are on one fabric; call it before NCCL's first use.

    Each node would choose by itself, and ranks with different kinds of network can't connect. Two fabrics with one
    prefix look like one: then `NCCL_NET` must be set. A value that is set on any rank stays.
    """
    store.set(f"fabrics/{rank}", "\n".join(sorted(own)))
    everyone = [set(store.get(f"fabrics/{each}").decode().splitlines()) for each in range(size)]
    if not _common(everyone) and any(everyone):
        environ.setdefault("NCCL_NET", "Socket")


def _common(everyone: Sequence[set[str]]) -> set[str]:
    return set.intersection(*everyone) if everyone else set()
