"""Zones on one machine: a network namespace each, with a pair of interfaces of limited rate between every two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

INTERFACE = "zone0"
# Sends or takes messages one by one and prints the seconds of each; plain sockets, so that nothing of the runtime
# measures itself. A message starts when its receiver asks for it, over a link that has been idle, as a stage's do.
_PROBE = """
import socket, sys, time
role, address, port, sizes = sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(size) for size in sys.argv[4:]]
if role == "take":
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        peer = server.accept()[0]
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in sizes:
            begun = time.perf_counter()
            peer.sendall(b"x")
            left = size
            while left:
                left -= len(peer.recv(min(left, 1 << 20)))
            print(time.perf_counter() - begun)
else:
    with socket.create_connection((address, port), timeout=60) as peer:
        for size in sizes:
            peer.recv(1)
            peer.sendall(bytes(size))
"""


class CannotError(Exception):
    """This machine can't do it; the text says why."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A namespace and the address at which its ranks listen."""

    name: str
    namespace: str
    address: str

    def command(self, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *argv]


@contextmanager
def zones(mbit_per_s: Mapping[tuple[str, str], float]) -> Iterator[dict[str, Zone]]:
    """Make the zones that the pairs name, with that rate in either direction. Raises CannotError."""
    if os.geteuid() != 0:
        raise CannotError("network namespaces need root")
    names = sorted({name for pair in mbit_per_s for name in pair})
    tag = f"sc{os.getpid()}"
    made = {name: Zone(name, f"{tag}-{name}", f"10.83.{index}.1") for index, name in enumerate(names, start=1)}
    with ExitStack() as stack:
        for zone in made.values():
            _do("ip", "netns", "add", zone.namespace)
            stack.callback(subprocess.run, ["ip", "netns", "del", zone.namespace], check=False)
            _do("ip", "-n", zone.namespace, "link", "set", "lo", "up")
            # Both ends stay here: an interface of its own that carries the zone's address.
            _do("ip", "-n", zone.namespace, "link", "add", INTERFACE, "type", "veth", "peer", "name", "zone1")
            _do("ip", "-n", zone.namespace, "addr", "add", f"{zone.address}/32", "dev", INTERFACE)
            for end in (INTERFACE, "zone1"):
                _do("ip", "-n", zone.namespace, "link", "set", end, "up")
        for number, (first, second) in enumerate(combinations(names, 2)):
            rate = mbit_per_s[first, second] if (first, second) in mbit_per_s else mbit_per_s[second, first]
            _join(made[first], made[second], number, rate)
        yield made


def timed_messages(src: Zone, dst: Zone, sizes: Sequence[int]) -> list[tuple[int, float]]:
    """Return (bytes, seconds) of messages from one zone to another, by one TCP connection; the first one is not timed.

    The shorter of two times counts: other work on the machine only adds.
    """
    order = (sizes[-1] // 4, *sizes, *sizes)
    common = (dst.address, "29999", *map(str, order))
    taking = subprocess.Popen(
        dst.command(sys.executable, "-c", _PROBE, "take", *common), stdout=subprocess.PIPE, text=True
    )
    assert taking.stdout is not None
    taking.stdout.readline()
    _do(*src.command(sys.executable, "-c", _PROBE, "send", *common))
    output, _ = taking.communicate(timeout=120)
    _, *seconds = map(float, output.split())
    return [(size, min(pair)) for size, *pair in zip(sizes, seconds, seconds[len(sizes) :], strict=False)]


def _join(first: Zone, second: Zone, number: int, mbit_per_s: float) -> None:
    ends = (f"v{number}a", f"v{number}b")
    _do(
        "ip",
        "link",
        "add",
        ends[0],
        "netns",
        first.namespace,
        "type",
        "veth",
        "peer",
        "name",
        ends[1],
        "netns",
        second.namespace,
    )
    for zone, other, end, own, theirs in (
        (first, second, ends[0], f"10.84.{number}.1", f"10.84.{number}.2"),
        (second, first, ends[1], f"10.84.{number}.2", f"10.84.{number}.1"),
    ):
        _do("ip", "-n", zone.namespace, "addr", "add", f"{own}/30", "dev", end)
        _do("ip", "-n", zone.namespace, "link", "set", end, "up")
        # A burst much shorter than a message, so that none gets ahead of the rate, and a queue short enough that what
        # confirms data is not kept waiting behind data of the other direction.
        shape = ("rate", f"{round(mbit_per_s * 1000)}kbit", "burst", "5kb", "latency", "100ms")
        _do("tc", "-n", zone.namespace, "qdisc", "add", "dev", end, "root", "tbf", *shape)
        via = ("via", theirs, "src", zone.address)
        _do("ip", "-n", zone.namespace, "route", "add", f"{other.address}/32", *via)


def _do(*argv: str) -> None:
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    except FileNotFoundError as error:
        raise CannotError(f"there is no {argv[0]} here") from error
    except subprocess.CalledProcessError as error:
        raise CannotError(f"{' '.join(argv[:8])}: {error.stderr.strip()}") from error


def events(path: Path) -> list[dict[str, object]]:
    """Return what a rank has written."""
    whole, _, _ = path.read_text().rpartition("\n") if path.is_file() else ("", "", "")
    return [json.loads(line) for line in whole.splitlines()]
