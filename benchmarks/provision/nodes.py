"""Stand-ins for many nodes in one process: SSH servers that take files and answer what bringing up a node asks."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from typing import Any

import asyncssh


class _Node(asyncssh.SSHServer):
    """One connection is one node; its packages are there `install_s` after their installation began."""

    def connection_made(self, connection: asyncssh.SSHServerConnection) -> None:
        connection.set_extra_info(node={"installed_at": None})


async def main(key: str, request_s: float, install_s: float) -> None:
    host_key = asyncssh.generate_private_key("ssh-ed25519")

    async def answer(process: Any) -> None:
        await asyncio.sleep(request_s)
        node, command = process.get_extra_info("node"), process.command or ""
        printed = ""
        if "agent.lock" in command:
            printed = "no\n"
        elif " install " in command:
            node["installed_at"] = time.monotonic() + install_s
        elif command.endswith(" check") and node["installed_at"] and time.monotonic() >= node["installed_at"]:
            printed = "python3\n"
        process.stdout.write(printed)
        process.exit(0)

    def files(channel: Any) -> asyncssh.SFTPServer:
        return asyncssh.SFTPServer(channel, chroot=tempfile.mkdtemp(dir=folder).encode())

    with tempfile.TemporaryDirectory() as folder:
        server = await asyncssh.create_server(
            _Node,
            "127.0.0.1",
            0,
            server_host_keys=[host_key],
            authorized_client_keys=asyncssh.import_authorized_keys(key),
            process_factory=answer,
            sftp_factory=files,
            backlog=1024,
        )
        address = {"port": server.get_port(), "host_key": host_key.export_public_key().decode().strip()}
        print(json.dumps(address), flush=True)
        await server.wait_closed()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
