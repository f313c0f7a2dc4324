"""Tens of nodes are reached side by side, some of them only once they have booted; what they get is private."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import asyncssh

from sailor_cloud.launch.fleet.ssh_fleet import SshFleet
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.run.options import LaunchOptions

NODES, BOOTING = 24, 8


def test_two_dozen_nodes_are_reached_though_a_third_of_them_still_boots(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(key_file))
    allowed = asyncssh.import_authorized_keys(key.export_public_key().decode())
    reached: list[str] = []

    async def connect() -> None:
        first = asyncio.Event()

        class Door(asyncssh.SSHServer):
            def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
                first.set()

        async def listen(host_key: asyncssh.SSHKey, taken: socket.socket) -> asyncssh.SSHAcceptor:
            return await asyncssh.listen(
                sock=taken,
                server_host_keys=[host_key],
                server_factory=Door,
                authorized_client_keys=allowed,
                sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(tmp_path).encode()),
            )

        async def boot(host_key: asyncssh.SSHKey, taken: socket.socket) -> asyncssh.SSHAcceptor:
            await first.wait()
            return await listen(host_key, taken)

        nodes, doors, booting = [], [], []
        for number in range(NODES):
            host_key = asyncssh.generate_private_key("ssh-ed25519")
            # A port that is taken and not listened at refuses, as that of a machine does that still boots.
            taken = socket.socket()
            taken.bind(("127.0.0.1", 0))
            nodes.append(_node(f"n{number}", taken.getsockname()[1], host_key))
            if number < BOOTING:
                booting.append(asyncio.create_task(boot(host_key, taken)))
            else:
                doors.append(await listen(host_key, taken))
        fleet = SshFleet(
            folder=cast(Any, SimpleNamespace(ssh_key_file=key_file)),
            clock=cast(Any, None),
            options=LaunchOptions(),
            _bundle=cast(Any, SimpleNamespace()),
            _software=cast(Any, SimpleNamespace()),
        )
        links = await fleet.connect(nodes)
        reached.extend(cast(Any, link).connection.node.id for link in links)
        await cast(Any, links[0]).connection.write("sent", b"a command's variables")
        for link in links:
            await link.close()
        for door in [*doors, *await asyncio.gather(*booting)]:
            door.close()
            await door.wait_closed()

    asyncio.run(connect())
    assert reached == [f"n{number}" for number in range(NODES)]
    assert [path.stat().st_mode & 0o777 for path in tmp_path.rglob("sent")] == [0o600]


def _node(name: str, port: int, host_key: asyncssh.SSHKey) -> ReachableNode:
    return ReachableNode(
        id=name,
        provider=Provider("gcp"),
        region="us-central1",
        zone="us-central1-a",
        instance_type="a2-highgpu-1g",
        accelerator="A100-40",
        devices=1,
        address="127.0.0.1",
        port=port,
        user="trainer",
        host_public_key=host_key.export_public_key().decode().strip(),
        private_address="127.0.0.1",
        workdir="/tmp",
        created_at=datetime(2026, 11, 21, tzinfo=UTC),
    )
