"""The meeting of the agents of one job: node groups of a plan, started by any scheduler. Standard library only.

Every node of the job runs one command, which gives it its group and its index in it; the plan maps these to ranks. The
first node of the first group listens. Once all nodes have come it sends each the run spec with all addresses.
Connections stay open to the end: one that breaks without a last message means a lost node.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sailor_runtime.spec import ARTEFACT_VERSION, JOB_TOKEN

FIRST_PORT, LAST_PORT = 29500, 29599
JOIN_S = 900.0
_RETRY_S = 0.2
_MESSAGE_S = 5.0
# The most peers whose first message may be pending; of more, the slowest one is rejected.
_MOST_PENDING = 256
# Seconds until a peer without power is noticed: idle time, then this many probes with pauses between them.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class RendezvousError(Exception):
    """The agents of a job did not all meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A plan for the nodes of one job: `groups` are node ids by group, `spec` is a run spec without addresses."""

    generation: int
    plan_hash: str
    token: str
    groups: dict[str, list[str]]
    master: str
    spec: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> Artefact:
        """Read an artefact. Raises RendezvousError."""
        try:
            raw = json.loads(path.read_text())
            if raw["artefact_version"] != ARTEFACT_VERSION:
                raise RendezvousError(
                    f"{path} has artefact_version {raw['artefact_version']}, this runtime reads {ARTEFACT_VERSION}"
                )
            groups = {group["name"]: list(group["nodes"]) for group in raw["groups"]}
            spec = raw["spec"]
            return cls(
                generation=spec["generation"],
                plan_hash=spec["plan_hash"],
                token=str(raw.get("token") or os.environ.get(JOB_TOKEN, "")),
                groups=groups,
                master=raw["master"],
                spec=spec,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RendezvousError(f"{path} is not a plan for a job: {error!r}") from error

    def node(self, group: str, index: int) -> str:
        """Return the id of a node. Raises RendezvousError if the plan has no such node."""
        nodes = self.groups.get(group)
        if nodes is None or not 0 <= index < len(nodes):
            known = ", ".join(f"{name} 0-{len(ids) - 1}" for name, ids in self.groups.items())
            raise RendezvousError(f"the plan has no node {index} of group {group!r}; it has {known}")
        return nodes[index]

    @property
    def first(self) -> str:
        return next(iter(self.groups.values()))[0]

    @property
    def nodes(self) -> set[str]:
        return {node for nodes in self.groups.values() for node in nodes}

    def filled(self, addresses: dict[str, str], port: int) -> str:
        """Return the spec as JSON with the nodes' addresses and the port of rank 0."""
        spec = {**self.spec, "master_address": addresses[self.master], "master_port": port}
        spec["nodes"] = [{**node, "address": addresses[node["id"]]} for node in spec["nodes"]]
        return json.dumps(spec, indent=1, sort_keys=True)


class Rendezvous:
    """One agent's end. `lost` is called with the ids of nodes whose connection broke, from a separate thread."""

    def __init__(self, artefact: Artefact, node: str, meeting: str, lost: Callable[[list[str]], None]) -> None:
        self._artefact = artefact
        self._node = node
        host, _, port = meeting.rpartition(":")
        if not host or not port.isdigit():
            raise RendezvousError(f"--rendezvous must be HOST:PORT, got {meeting!r}")
        self._host, self._port = host.strip("[]"), int(port)
        self._lost = lost
        self._peers: dict[str, socket.socket] = {}
        self._over = False

    def join(self, timeout_s: float = JOIN_S) -> str:
        """Wait until all nodes of the plan have come, and return the spec. Raises RendezvousError."""
        until = time.monotonic() + timeout_s
        if not self._artefact.token and len(self._artefact.nodes) > 1:
            raise RendezvousError(
                f"the plan has no token and {JOB_TOKEN} is not set, so anybody could take a node's place; set it "
                "to the same random text on all nodes"
            )
        if self._node == self._artefact.first:
            return self._gather(until)
        return self._ask(until)

    def leave(self) -> None:
        """Report that this node ends on purpose."""
        self._over = True
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.sendall(b'{"bye": true}\n')
                peer.shutdown(socket.SHUT_RDWR)
            peer.close()

    def _gather(self, until: float) -> str:
        wanted = self._artefact.nodes - {self._node}
        addresses, ports = {self._node: self._host}, {self._node: free_port()}
        files: dict[str, Any] = {}
        with _listening(self._port, until) as server:
            for peer, address, hello in _first_messages(server, until) if wanted else ():
                node = hello.get("node")
                token = str(hello.get("token", "")).encode(errors="replace")
                known = hmac.compare_digest(token, self._artefact.token.encode())
                fits = known and hello.get("plan_hash") == self._artefact.plan_hash
                if not fits or node not in wanted - addresses.keys():
                    peer.close()
                    continue
                addresses[node], ports[node] = address.removeprefix("::ffff:"), hello["port"]
                self._peers[node], files[node] = peer, peer.makefile("r")
                if not wanted - addresses.keys():
                    break
        if missing := ", ".join(sorted(wanted - addresses.keys())):
            raise RendezvousError(f"these nodes did not come in time: {missing}")
        spec = self._artefact.filled(addresses, ports[self._artefact.master])
        answer = json.dumps({"spec": spec}).encode() + b"\n"
        for node, peer in self._peers.items():
            with contextlib.suppress(OSError):
                peer.sendall(answer)
            self._watch(node, peer, files[node])
        return spec

    def _ask(self, until: float) -> str:
        while True:
            try:
                peer = socket.create_connection((self._host, self._port), timeout=5.0)
                break
            except OSError as error:
                if time.monotonic() >= until:
                    raise RendezvousError(f"no answer at {self._host}:{self._port}: {error}") from error
                time.sleep(_RETRY_S)
        word = {
            "node": self._node,
            "plan_hash": self._artefact.plan_hash,
            "token": self._artefact.token,
            "port": free_port(),
        }
        peer.sendall(json.dumps(word).encode() + b"\n")
        peer.settimeout(max(0.01, until - time.monotonic()))
        file = peer.makefile("r")
        try:
            reply = json.loads(file.readline() or "{}")
        except (OSError, ValueError) as error:
            raise RendezvousError(f"the first node did not answer: {error}") from error
        if "spec" not in reply:
            raise RendezvousError(
                "the first node rejected this one: it has another plan, or another node has the same group and index"
            )
        peer.settimeout(None)
        self._peers[self._artefact.first] = peer
        self._watch(self._artefact.first, peer, file)
        return str(reply["spec"])

    def _watch(self, node: str, peer: socket.socket, file: Any) -> None:
        peer.settimeout(None)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)

        def read() -> None:
            try:
                last = file.readline()
            except (OSError, ValueError):
                last = ""
            file.close()
            if "bye" not in last and not self._over:
                self._lost([node])

        threading.Thread(target=read, name=f"watch-{node}", daemon=True).start()


@contextlib.contextmanager
def _listening(port: int, until: float) -> Any:
    """Listen on a port, waiting until an earlier job on the same machine has released it."""
    while True:
        try:
            family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
            server = socket.create_server(
                ("", port), family=family, dualstack_ipv6=family == socket.AF_INET6, backlog=1024
            )
            break
        except OSError as error:
            if time.monotonic() >= until:
                raise RendezvousError(f"port {port} can't be listened on: {error}") from error
            time.sleep(_RETRY_S)
    with server:
        yield server


def _first_messages(server: socket.socket, until: float) -> Iterator[tuple[socket.socket, str, dict[str, Any]]]:
    """Yield each peer with its address and its first message, unless it sends no JSON within five seconds.

    All peers are read concurrently, so that a silent or slow one does not delay the others.
    """
    pending: dict[socket.socket, tuple[str, bytes, float]] = {}
    server.setblocking(False)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while (now := time.monotonic()) < until:
                for peer in [peer for peer, (_, _, ends) in pending.items() if now >= ends]:
                    selector.unregister(peer)
                    yield peer, pending.pop(peer)[0], {}
                for key, _ in selector.select(max(0.01, min(_MESSAGE_S / 10, until - now))):
                    if key.fileobj is server:
                        with contextlib.suppress(OSError):
                            peer, address = server.accept()
                            peer.setblocking(False)
                            selector.register(peer, selectors.EVENT_READ)
                            pending[peer] = (str(address[0]), b"", now + _MESSAGE_S)
                        if len(pending) <= _MOST_PENDING:
                            continue
                        peer, data = next(iter(pending)), b""
                    else:
                        peer = cast(socket.socket, key.fileobj)
                        if peer not in pending:
                            continue
                        try:
                            part = peer.recv(4096)
                        except OSError:
                            part = b""
                        address_of, before, ends = pending[peer]
                        data = before + part
                        pending[peer] = address_of, data, ends
                        if part and not data.endswith(b"\n") and len(data) < 4096:
                            continue
                    selector.unregister(peer)
                    peer.setblocking(True)
                    yield peer, pending.pop(peer)[0], _parsed_message(data)
    finally:
        for peer in pending:
            peer.close()


def _parsed_message(data: bytes) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    fits = isinstance(message, dict) and isinstance(message.get("node"), str) and isinstance(message.get("port"), int)
    return message if fits else {}


def free_port() -> int:
    """Return a free port of the training range; the search starts at a different port for each job on a machine."""
    span = LAST_PORT - FIRST_PORT + 1
    for step in range(span):
        port = FIRST_PORT + (os.getpid() + step) % span
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("", port))
                one.listen(1)
            except OSError:
                continue
        return port
    raise RendezvousError(f"no free port in {FIRST_PORT}-{LAST_PORT}")
