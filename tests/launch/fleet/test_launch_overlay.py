"""WireGuard between nodes on two clouds: who is told of whom, what is refused, and the real tunnel."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from factories.nodes import local_node
from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet import overlay
from sailor_cloud.launch.fleet.agents import AgentLink
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.launch.fleet.overlay import Overlay
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import ReachableNode


@dataclass
class _Connection:
    """A node's SSH that answers as the scripts do. `silent`: keys of peers that never answer."""

    name: str
    silent: str = ""
    dead: bool = False
    told: list[list[str]] = field(default_factory=list)

    async def run(self, argv: list[str], **_: Any) -> str:
        if self.dead:
            raise UnreachableError(f"node {self.name}: connection lost")
        script = argv[2]
        if script == overlay._KEY:
            return f"key-of-{self.name}\n"
        if script == overlay._PEERS:
            self.told.append(argv[4:])
            return ""
        return self.silent


@dataclass
class _Link:
    node: ReachableNode
    connection: _Connection
    closed: bool = False


def _link(name: str, provider: str, number: int) -> AgentLink:
    node = replace(
        local_node(name),
        provider=Provider(provider),
        address=f"203.0.113.{number}",
        private_address=f"10.64.0.{number}",
    )
    return cast(AgentLink, _Link(node=node, connection=_Connection(name)))


def _told(link: AgentLink) -> list[str]:
    return cast(_Link, link).connection.told[-1]


def test_each_node_learns_only_the_nodes_on_other_clouds() -> None:
    a, b, c = _link("a", "gcp", 1), _link("b", "gcp", 2), _link("c", "aws", 3)
    asyncio.run(Overlay().join([a, b, c]))
    of_c = ["key-of-c", "203.0.113.3", "10.64.0.3"]
    assert (_told(a), _told(b)) == (["10.64.0.1", *of_c], ["10.64.0.2", *of_c])
    assert _told(c) == ["10.64.0.3", "key-of-a", "203.0.113.1", "10.64.0.1", "key-of-b", "203.0.113.2", "10.64.0.2"]


def test_nodes_of_one_cloud_are_left_alone() -> None:
    a, b = _link("a", "gcp", 1), _link("b", "gcp", 2)
    asyncio.run(Overlay().join([a, b]))
    assert cast(_Link, a).connection.told == cast(_Link, b).connection.told == []


def test_a_node_that_is_gone_is_forgotten_when_another_one_comes() -> None:
    net, a, gone, new = Overlay(), _link("a", "gcp", 1), _link("gone", "aws", 2), _link("new", "aws", 3)
    asyncio.run(net.join([a, gone]))
    cast(_Link, gone).connection.dead = True

    async def later() -> None:
        await net.join([new])
        await net.join([])

    asyncio.run(later())
    assert _told(a) == ["10.64.0.1", "key-of-new", "203.0.113.3", "10.64.0.3"]


def test_a_peer_that_never_answers_and_a_new_node_that_is_gone_are_errors() -> None:
    a, b = _link("a", "gcp", 1), _link("b", "aws", 2)
    cast(_Link, a).connection.silent = "key-of-b\n"
    with pytest.raises(LaunchError, match="node a gets no answer through WireGuard from b; is UDP port 51820 closed"):
        asyncio.run(Overlay().join([a, b]))
    cast(_Link, b).connection.dead = True
    with pytest.raises(UnreachableError, match="node b: connection lost"):
        asyncio.run(Overlay().join([a, b]))


def _dies_at_the_handshake(link: AgentLink, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = cast(_Link, link).connection
    answer = connection.run

    async def run(argv: list[str], **_: Any) -> str:
        connection.dead = argv[2] == overlay._ANSWERS
        return await answer(argv)

    monkeypatch.setattr(connection, "run", run)


def test_a_new_node_that_ends_during_the_handshake_is_no_closed_port(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _link("a", "gcp", 1), _link("b", "aws", 2)
    cast(_Link, a).connection.silent = "key-of-b"
    _dies_at_the_handshake(b, monkeypatch)
    with pytest.raises(UnreachableError, match="node b: connection lost"):
        asyncio.run(Overlay().join([a, b]))


def test_an_earlier_node_that_ends_during_the_handshake_does_not_prevent_others_from_joining(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, a, gone, new = Overlay(), _link("a", "gcp", 1), _link("gone", "aws", 2), _link("new", "aws", 3)
    asyncio.run(net.join([a, gone]))
    cast(_Link, a).connection.silent = "key-of-gone"
    _dies_at_the_handshake(gone, monkeypatch)
    asyncio.run(net.join([new]))
    asyncio.run(net.join([]))
    assert _told(a)[1::3] == ["key-of-new"]


def test_a_node_that_the_run_has_given_up_is_not_connected_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address may be another machine's by now, whose host key would end the run."""
    net, a, lost, new = Overlay(), _link("a", "gcp", 1), _link("lost", "aws", 2), _link("new", "aws", 3)
    asyncio.run(net.join([a, lost]))
    cast(_Link, lost).closed = True

    async def stranger(argv: list[str], **_: Any) -> str:
        raise LaunchError("node lost: the host key has changed")

    monkeypatch.setattr(cast(_Link, lost).connection, "run", stranger)
    asyncio.run(net.join([new]))
    assert _told(a)[1::3] == ["key-of-new"]


def _script(folder: Path, text: str, *arguments: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run a script where `sudo` runs what it is given and the programs are those named."""
    folder.mkdir(exist_ok=True)
    programs = {"sudo": 'exec env "$@"', "sleep": "true", **programs}
    for name, body in programs.items():
        (folder / name.replace("_", "-")).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name.replace("_", "-")).chmod(0o700)
    path = {"PATH": f"{folder}:{os.defpath}"}
    command = ["sh", "-c", text, "script", *arguments]
    return subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, check=False)


def test_a_wireguard_that_fails_is_no_handshake(tmp_path: Path) -> None:
    done = _script(tmp_path, overlay._ANSWERS, wg='echo "Unable to access interface" >&2; exit 1')
    assert (done.returncode, done.stderr.strip()) == (1, "Unable to access interface")


def test_peers_without_a_handshake_are_reported_and_others_are_not(tmp_path: Path) -> None:
    assert _script(tmp_path, overlay._ANSWERS, wg='printf "a\\t0\\nb\\t17\\n"').stdout.split() == ["a"]
    assert _script(tmp_path, overlay._ANSWERS, wg='printf "a\\t9\\nb\\t17\\n"').stdout.split() == []


@pytest.mark.parametrize(("held", "code"), [(5, 0), (100, 1)], ids=["for a while", "for ever"])
def test_a_lock_of_the_package_lists_is_waited_for(held: int, code: int, tmp_path: Path) -> None:
    """What a fresh machine's own updates hold, apt fails at once for."""
    wanted = overlay._KEY.replace("command -v wg", "command -v wg-of-this-test")
    apt = f"""
case "$*" in *install*) [ -e lists ] || exit 100 ;; *)
  echo try >> tries
  [ "$(wc -l < tries)" -gt {held} ] || {{ echo "E: Could not get lock" >&2; exit 100; }}
  touch lists ;;
esac"""
    done = _script(tmp_path, wanted, apt_get=apt, wg="cat /dev/null; echo key")
    assert done.returncode == code, done.stderr
    assert done.stdout.split() == (["key"] if code == 0 else [])
    assert len((tmp_path / "tries").read_text().split()) == (held + 1 if code == 0 else 30)


def test_a_kernel_without_wireguard_says_so_before_the_other_way_is_tried(tmp_path: Path) -> None:
    done = _script(
        tmp_path,
        overlay._PEERS,
        "10.64.0.1",
        nft="cat >/dev/null",
        ip='[ "$2" = add ] && echo "Operation not supported" >&2; exit 1',
        wireguard_go='echo "no such program" >&2; exit 1',
    )
    assert done.returncode == 1
    assert done.stderr.split("\n")[:2] == ["Operation not supported", "no such program"]


_NODES = {"a": ("198.51.100.1", "10.64.0.2"), "b": ("198.51.100.2", "10.65.0.4")}
# Sends what it reads to the port of the rendezvous, or prints how much came and from where.
_SEND = "import socket, sys; s = socket.create_connection((sys.argv[1], 29500), 20); s.sendall(b'x' * 10**6); s.close()"
_RECEIVE = """
import socket, sys
s = socket.create_server((sys.argv[1], 29500)); print("ready", flush=True)
c, (address, _) = s.accept(); n = 0
while part := c.recv(65536): n += len(part)
print(n, address)
"""
_ANSWER = """
import socket, sys
s = socket.create_server((sys.argv[1], int(sys.argv[2]))); print("ready", flush=True)
s.accept()[0].sendall(b"answer")
"""
_TRY = """
import socket, sys
try: print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 20).recv(100).decode())
except ConnectionRefusedError: print("refused")
"""


def _can_make_namespaces() -> bool:
    programs = all(shutil.which(name) for name in ("wg", "ip", "nft"))
    if os.geteuid() or not (programs and Path("/dev/net/tun").exists()):
        return False
    done = subprocess.run(["ip", "netns", "add", "sailor-try"], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", "sailor-try"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[Path]:
    """Two hosts with a link between their public addresses, each with a private address that the other can't reach."""
    if not _can_make_namespaces():
        pytest.skip("needs root, network namespaces and WireGuard's programs")
    with ExitStack() as stack:
        for name in _NODES:
            _run("ip", "netns", "add", f"sailor-{name}")
            stack.callback(_run, "ip", "netns", "del", f"sailor-{name}")
        peer = ("type", "veth", "peer", "name", "vb", "netns", "sailor-b")
        _run("ip", "link", "add", "va", "netns", "sailor-a", *peer)
        for name, (public, private) in _NODES.items():
            there = ("ip", "-n", f"sailor-{name}")
            _run(*there, "addr", "add", f"{public}/24", "dev", f"v{name}")
            _run(*there, "addr", "add", f"{private}/32", "dev", "lo")
            for device in ("lo", f"v{name}"):
                _run(*there, "link", "set", device, "up")
            (tmp_path / name / "run").mkdir(parents=True)
        (tmp_path / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (tmp_path / "sudo").chmod(0o700)
        yield tmp_path
        # A tunnel in userspace is a process that ends with its device.
        for name in _NODES:
            _in(tmp_path, name, "sh", "-c", "ip link del sailor0 || true")


def test_ranks_reach_private_addresses_of_the_other_cloud_through_a_real_tunnel(namespaces: Path) -> None:
    keys = {name: _in(namespaces, name, "sh", "-c", overlay._KEY).split()[-1] for name in _NODES}
    for name, other in (("a", "b"), ("b", "a")):
        public, private = _NODES[other]
        told = (_NODES[name][1], keys[other], public, private)
        gone = (base64.b64encode(name.encode() * 32).decode(), "198.51.100.9", "10.66.0.9")
        _in(namespaces, name, "sh", "-c", overlay._PEERS, "peers", *told, *gone)
        assert len(_routes(namespaces, name)) == 2
        _in(namespaces, name, "sh", "-c", overlay._PEERS, "peers", *told)
        assert _routes(namespaces, name) == [private], "nodes that are gone have no route and no peer"
        assert _in(namespaces, name, "wg", "show", "sailor0", "peers").split() == [keys[other]]
    assert [_in(namespaces, name, "sh", "-c", overlay._ANSWERS).strip() for name in _NODES] == ["", ""]
    private = _NODES["b"][1]
    command = _command(namespaces, "b", sys.executable, "-c", _RECEIVE, private)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        _in(namespaces, "a", sys.executable, "-c", _SEND, private)
        assert receiver.stdout.read().split() == [str(10**6), _NODES["a"][1]]
    for port, closed in ((22, True), (8080, True), (29599, False), (29600, True), (60999, False), (61000, True)):
        command = _command(namespaces, "b", sys.executable, "-c", _ANSWER, private, str(port))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            reply = _in(namespaces, "a", sys.executable, "-c", _TRY, private, str(port)).strip()
            server.kill()
        assert reply == ("refused" if closed else "answer"), port
    assert (namespaces / "a" / "overlay" / "key").stat().st_mode & 0o777 == 0o600


def _routes(root: Path, name: str) -> list[str]:
    return [line.split()[0] for line in _in(root, name, "ip", "route", "show", "dev", "sailor0").splitlines()]


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _command(root: Path, name: str, *command: str) -> list[str]:
    """Return a command for a host, which has its own sockets for tunnels in userspace."""
    begin = (
        f"mkdir -p /var/run/wireguard; mount --bind {root / name / 'run'} /var/run/wireguard; cd {root / name}; "
        f'export PATH={root}:$PATH; exec "$@"'
    )
    return ["ip", "netns", "exec", f"sailor-{name}", "sh", "-c", begin, "host", *command]


def _in(root: Path, name: str, *command: str) -> str:
    return _run(*_command(root, name, *command))
