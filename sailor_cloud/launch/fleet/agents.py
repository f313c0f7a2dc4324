"""Puts the runtime on a node, starts its agent, sends it commands and reads its events."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.bundle import Bundle
from sailor_cloud.launch.fleet.code import Code
from sailor_cloud.launch.fleet.fleet import Health, UnreachableError
from sailor_cloud.launch.fleet.packages import prepared_python
from sailor_cloud.launch.fleet.software import Software
from sailor_cloud.launch.fleet.ssh import NodeConnection
from sailor_cloud.launch.telemetry.events import AgentEvent, parse_line
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.providers import on_this_machine
from sailor_runtime.spec import HEARTBEAT_FILE, HEARTBEAT_S

EVENTS_FILE = "agent.jsonl"
RANK_MODULE = "sailor_runtime.training"
# The path from which ranks import modules besides the shipped runtime.
EXTRA_PATHS: tuple[str, ...] = ()
FIRST_PORT, LAST_PORT = 29500, 29599
_PART_BYTES = 4 * 2**20

# Prints the first free port of its arguments. Binds to all addresses, because the rendezvous store listens on all. A
# port in TIME_WAIT counts as free, as it does for the store.
_FREE_PORT = """
import socket, sys
for port in map(int, sys.argv[1:]):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("", port))
            s.listen(1)
        except OSError:
            continue
    print(port)
    break
"""

# An agent holds its lock while it lives. A process id could belong to another process by now.
_AGENT_RUNS = """
import fcntl
try:
    with open("agent.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("no")
except FileNotFoundError:
    print("no")
except BlockingIOError:
    print("yes")
"""


@dataclass(slots=True)
class AgentLink:
    """The controller's end of one agent; see `fleet.Link`."""

    connection: NodeConnection
    bundle: Bundle
    software: Software = field(default_factory=Software)
    # The branch of NVIDIA's driver that the node's image may lack.
    driver: str | None = None
    offset: int = 0
    _sent: int = 0
    _torn: bytes = field(default=b"")
    _heartbeats: asyncio.Task[None] | None = None
    closed: bool = field(default=False, init=False)

    @property
    def node(self) -> ReachableNode:
        return self.connection.node

    @property
    def python(self) -> str:
        """The node's interpreter for small scripts; on this machine the controller's own."""
        return sys.executable if on_this_machine(self.node.provider) else "python3"

    async def ensure_agent(self) -> None:
        if not await self._agent_runs():
            await self._ship()
            await self._start(await self._python_for_ranks())

    async def _python_for_ranks(self) -> str:
        """Return the interpreter that has torch; on a cloud, install it first if necessary."""
        if on_this_machine(self.node.provider):
            return self.python
        return await prepared_python(self.connection, self.software, node=self.node.id, driver=self.driver)

    async def _ship(self) -> None:
        """Copy the runtime to the node, unless the node has the same content already."""
        await self._unpacked(f"runtime/{self.bundle.sha256}", self.bundle.content)

    async def upload_code(self, code: Code) -> None:
        await self._unpacked(f"code/{code.sha256}", code.content)

    async def _unpacked(self, folder: str, content: bytes) -> None:
        """Unpack a gzipped tar into a folder. It is sent in parts, so that no call takes long on a slow line."""
        if (await self.connection.run(["sh", "-c", f"test -d {folder} && echo there || true"])).strip():
            return
        archive = f"{folder}.tar.gz"
        parts = [f"{archive}.{number:05d}" for number in range(-(-len(content) // _PART_BYTES))]
        for number, part in enumerate(parts):
            await self.connection.write(part, content[number * _PART_BYTES : (number + 1) * _PART_BYTES])
        await self.connection.run(["sh", "-c", f"cat {archive}.* > {archive} && rm {archive}.*"])
        unpack = f"test -d {folder} || {{ mkdir -p {folder}.partial && tar -xzf {archive} -C {folder}.partial && "
        await self.connection.run(["sh", "-c", unpack + f"mv {folder}.partial {folder}; }}"])

    async def _start(self, python: str) -> None:
        """Start the agent, detached from this connection. Raises LaunchError if it does not report in."""
        workdir = self.node.workdir
        paths = ":".join((f"{workdir}/runtime/{self.bundle.sha256}", *EXTRA_PATHS))
        environment = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        agent = [python, "-m", "sailor_runtime.agent", "--home", workdir, "--rank-module", RANK_MODULE]
        await self.connection.run([*agent, *self._cloud_options(), "--detach"], environment=environment)

    def _cloud_options(self) -> list[str]:
        """Return options for a cloud's node: whose preemption notices to watch, and power-off once it is orphaned."""
        provider = self.node.provider
        notices = ["--provider", provider] if providers.of(provider).preemption_notices else []
        return notices if on_this_machine(provider) else [*notices, "--power-off"]

    def keep_alive(self) -> None:
        """Ping the agent regularly until the link is closed, so that it does not treat its node as orphaned."""
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    async def _send_heartbeats(self) -> None:
        while self._heartbeats is not None:
            with contextlib.suppress(LaunchError):
                await self.connection.write(HEARTBEAT_FILE, b"")
            if self._heartbeats is not None:
                await asyncio.sleep(HEARTBEAT_S)

    async def _agent_runs(self) -> bool:
        return (await self.connection.run([self.python, "-c", _AGENT_RUNS])).strip() == "yes"

    async def health(self) -> Health:
        try:
            return Health.WELL if await self._agent_runs() else Health.AGENT_DEAD
        except UnreachableError:
            return Health.UNREACHABLE

    async def free_port(self, first_choice: int) -> int:
        """Return a free port of the node in the training range; the search starts at `first_choice`."""
        span = LAST_PORT - FIRST_PORT + 1
        choices = [str(FIRST_PORT + (first_choice + i) % span) for i in range(span)]
        output = await self.connection.run([self.python, "-c", _FREE_PORT, *choices])
        if not output.strip():
            raise LaunchError(f"node {self.node.id} has no free port in {FIRST_PORT}-{LAST_PORT}")
        return int(output)

    async def write(self, path: str, content: bytes) -> None:
        await self.connection.write(path, content)

    async def command(self, name: str, *, generation: int, plan_hash: str, **details: Any) -> None:
        """Put a command in the agent's inbox."""
        self._sent += 1
        body = {"command": name, "generation": generation, "plan_hash": plan_hash, **details}
        # The generation comes first, so that a controller that takes over does not reuse a name.
        path = f"inbox/{generation:04d}-{self._sent:06d}-{name}.json"
        await self.connection.write(path, json.dumps(body).encode())

    async def new_events(self) -> list[AgentEvent]:
        data = await self.connection.read_from(EVENTS_FILE, self.offset)
        self.offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        events = (parse_line(line, node=self.node.id) for line in lines if line.strip())
        return [event for event in events if event is not None]

    async def fetch_logs(self, target: Path) -> None:
        await self.connection.fetch_logs(target)

    async def close(self) -> None:
        self.closed = True
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            # Python 3.11 can lose a cancellation that arrives just after a ping; then the task ends by itself.
            heartbeats.cancel()
            await asyncio.gather(heartbeats, return_exceptions=True)
        await self.connection.close()
