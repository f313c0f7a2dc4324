"""Connects to one node by SSH with the run's own key and a pinned host key, ignoring the user's configuration."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

import asyncssh

from sailor_cloud.errors import LaunchError, of_system
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.access.tunnel import OpenTunnel

CONNECT_TIMEOUT_S = 90.0
RETRY_INTERVAL_S = 0.5
COMMAND_TIMEOUT_S = 60.0
TRANSFER_TIMEOUT_S = 30.0
RECONNECT_TIMEOUT_S = 5.0
# A tunnel's program starts and first asks its cloud, which takes seconds.
TUNNEL_TIMEOUT_S = 30.0
TUNNEL_RETRY_INTERVAL_S = 5.0
FETCH_TIMEOUT_S = 120.0
# Of a log that a run keeps; ranks may write many GB.
MOST_LOG_BYTES = 32 * 2**20
_LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.log")

_T = TypeVar("_T")


def left_out(nbytes: int) -> str:
    """Return the line in place of a log's skipped bytes."""
    return f"[{nbytes:,} bytes are left out]"


class HostKeyChangedError(LaunchError):
    """A node's host key differs from the one recorded when it was created."""


@dataclass(slots=True)
class NodeConnection:
    """A connection to a node that is reopened when it breaks; paths are relative to the node's working folder.

    Every call raises UnreachableError if the node does not answer after one attempt to reconnect.
    """

    node: ReachableNode
    key_file: Path
    _connection: asyncssh.SSHClientConnection | None = None
    _tunnel: OpenTunnel | None = None
    _sftp: asyncssh.SFTPClient | None = None
    _mutex: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self, timeout_s: float) -> None:
        """Connect, with retries while the node boots. Raises UnreachableError, or immediately HostKeyChangedError."""
        self._connection, self._tunnel = await _connected(self.node, self.key_file, timeout_s)
        self._sftp = await self._connection.start_sftp_client()

    async def close(self) -> None:
        connection, self._connection, self._sftp = self._connection, None, None
        tunnel, self._tunnel = self._tunnel, None
        if connection is not None:
            connection.close()
            # A lost peer never confirms.
            try:
                await asyncio.wait_for(connection.wait_closed(), RECONNECT_TIMEOUT_S)
            except (TimeoutError, OSError, asyncssh.Error):
                connection.abort()
        if tunnel is not None:
            await asyncio.to_thread(tunnel.close)

    async def run(
        self, argv: list[str], *, environment: dict[str, str] | None = None, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> str:
        """Run a command in the working folder and return its output. Raises LaunchError if it fails."""
        prefix = "".join(f"{name}={shlex.quote(value)} " for name, value in sorted((environment or {}).items()))
        command = f"cd {shlex.quote(self.node.workdir)} && {prefix}{shlex.join(argv)}"

        async def work(
            connection: asyncssh.SSHClientConnection, _: asyncssh.SFTPClient
        ) -> asyncssh.SSHCompletedProcess:
            done = await connection.run(command, check=False)
            if done.exit_status is None:
                raise asyncssh.ConnectionLost("the connection ended before the command did")
            return done

        result = await self._attempt(work, argv[0], timeout_s)
        if result.exit_status != 0:
            output = str(result.stderr or result.stdout or "").strip()
            shown = shlex.join(argv if len(argv) < 4 else [*argv[:2], "..."])
            raise LaunchError(f"node {self.node.id}: {shown} ended with {result.exit_status}: {output}")
        return str(result.stdout or "")

    async def write(self, path: str, content: bytes) -> None:
        """Write a file atomically: to a temporary name, then renamed. Only the user can read it."""
        partial, private = f"{path}.partial", asyncssh.SFTPAttrs(permissions=0o600)

        async def work(_: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient) -> None:
            await sftp.makedirs(str(PurePosixPath(path).parent), exist_ok=True)
            async with sftp.open(partial, "wb", private) as file:
                await file.write(content)
            await sftp.posix_rename(partial, path)

        await self._attempt(work, f"writing {path}", TRANSFER_TIMEOUT_S)

    async def read_from(self, path: str, offset: int) -> bytes:
        """Return a file's content from a byte offset on; nothing if the file does not exist yet."""

        async def work(_: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient) -> bytes:
            try:
                async with sftp.open(path, "rb") as file:
                    data: bytes = await file.read(-1, offset)
                    return data
            except asyncssh.SFTPNoSuchFile:
                return b""

        return await self._attempt(work, f"reading {path}", TRANSFER_TIMEOUT_S)

    async def list_files(self, pattern: str) -> list[str]:
        """Return the names that match a pattern, sorted."""

        async def work(_: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient) -> list[str]:
            try:
                return sorted(str(name) for name in await sftp.glob(pattern))
            except asyncssh.SFTPNoSuchFile:
                return []

        return await self._attempt(work, f"listing {pattern}", TRANSFER_TIMEOUT_S)

    async def read_tail(
        self, path: str, offset: int, most_bytes: int, *, timeout_s: float = TRANSFER_TIMEOUT_S
    ) -> tuple[int, bytes]:
        """Return a file's end after a byte offset, of `most_bytes` at most, and where that begins."""

        async def work(_: asyncssh.SSHClientConnection, sftp: asyncssh.SFTPClient) -> tuple[int, bytes]:
            try:
                async with sftp.open(path, "rb") as file:
                    start = max(offset, ((await file.stat()).size or 0) - most_bytes)
                    return start, await file.read(most_bytes, start)
            except asyncssh.SFTPNoSuchFile:
                return offset, b""

        return await self._attempt(work, f"reading {path}", timeout_s)

    async def fetch_logs(self, destination: Path) -> None:
        """Copy the end of each log of the node, if any, into a folder; a first line says what is left out."""
        for path in await self.list_files("logs/*.log"):
            name = PurePosixPath(path).name
            # A node's names are not to be trusted.
            if _LOG_NAME.fullmatch(name):
                start, data = await self.read_tail(f"logs/{name}", 0, MOST_LOG_BYTES, timeout_s=FETCH_TIMEOUT_S)
                partial = destination / f".{name}.partial"
                try:
                    partial.write_bytes((f"{left_out(start)}\n".encode() if start else b"") + data)
                    partial.replace(destination / name)
                except OSError as error:
                    raise LaunchError(of_system(error)) from error

    async def _attempt(
        self,
        work: Callable[[asyncssh.SSHClientConnection, asyncssh.SFTPClient], Awaitable[_T]],
        what: str,
        timeout_s: float,
    ) -> _T:
        async with self._mutex:
            if self._connection is None:
                await self.open(RECONNECT_TIMEOUT_S if self.node.tunnel is None else TUNNEL_TIMEOUT_S)
            assert self._connection is not None
            assert self._sftp is not None
            try:
                return await asyncio.wait_for(work(self._connection, self._sftp), timeout_s)
            except asyncssh.SFTPError as error:
                if not isinstance(error, asyncssh.SFTPConnectionLost | asyncssh.SFTPNoConnection):
                    raise LaunchError(f"node {self.node.id}: {what} failed: {error}") from error
                failure: Exception = error
            except (asyncssh.Error, OSError) as error:
                failure = error
            except TimeoutError:
                failure = TimeoutError(f"no answer within {timeout_s:.0f} s")
            await self.close()
        raise UnreachableError(f"node {self.node.id}: connection lost, {what}: {failure}") from failure


async def connect(node: ReachableNode, key_file: Path, *, timeout_s: float = CONNECT_TIMEOUT_S) -> NodeConnection:
    """Return an open connection to a node; see `NodeConnection.open`."""
    connection = NodeConnection(node, key_file)
    await connection.open(timeout_s)
    return connection


async def _connected(
    node: ReachableNode, key_file: Path, timeout_s: float
) -> tuple[asyncssh.SSHClientConnection, OpenTunnel | None]:
    last: Exception | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await _attempted(node, key_file)
                except asyncssh.HostKeyNotVerifiable as error:
                    message = f"node {node.id} at {node.address} shows another host key than the one recorded for it"
                    raise HostKeyChangedError(f"{message}; nothing was sent to it") from error
                except (OSError, asyncssh.Error) as error:
                    last = error
                    await asyncio.sleep(RETRY_INTERVAL_S if node.tunnel is None else TUNNEL_RETRY_INTERVAL_S)
    except TimeoutError as error:
        why = f": {last}" if last is not None else ""
        if node.tunnel is not None:
            output = node.tunnel.last_output() or "nothing"
            why += f"; {node.tunnel.program[0]} said: {output} (log: {node.tunnel.log})"
        raise UnreachableError(
            f"node {node.id} at {node.address}:{node.port} did not answer within {timeout_s:.0f} s{why}"
        ) from error


async def _attempted(node: ReachableNode, key_file: Path) -> tuple[asyncssh.SSHClientConnection, OpenTunnel | None]:
    """Connect once, through the node's tunnel if it has one; the tunnel is closed if that fails."""
    tunnel = node.tunnel.open() if node.tunnel is not None else None
    try:
        connection = await asyncssh.connect(
            node.address,
            node.port,
            sock=tunnel.socket if tunnel is not None else None,
            username=node.user,
            client_keys=[str(key_file)],
            known_hosts=asyncssh.import_known_hosts(f"[{node.address}]:{node.port} {node.host_public_key}\n"),
            config=None,
            agent_path=None,
            keepalive_interval=15,
            # Processors have instructions for this cipher, and one call handles a whole packet.
            encryption_algs="^aes128-gcm@openssh.com",
        )
    except BaseException:
        if tunnel is not None:
            tunnel.close()
        raise
    return connection, tunnel
