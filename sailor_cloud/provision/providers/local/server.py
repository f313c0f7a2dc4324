"""The SSH server of a local node: key-only login, commands in the node's folder, SFTP inside it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import posixpath
import signal
import sys
from datetime import UTC, datetime
from typing import Any

import asyncssh

from sailor_cloud.durable import write_atomically
from sailor_cloud.provision.providers.local import vm
from sailor_cloud.provision.providers.local.spec import ADDRESS_ATTEMPTS, PORT, SPEC_VARIABLE, USER, VmInfo, VmSpec

_PR_SET_PDEATHSIG = 1
# The supervisor ends the node at its expiry; if it died, the server does so a little later.
_LATE_S = 10.0


class _NodeFiles(asyncssh.SFTPServer):
    """SFTP: relative paths start in the node's folder, and absolute ones must be inside it.

    The check is on names: a symbolic link inside the folder may point out of it.
    """

    def __init__(self, channel: Any, folder: str) -> None:
        super().__init__(channel)
        self._folder = os.fsencode(folder)

    def map_path(self, path: bytes) -> bytes:
        inside = posixpath.normpath(posixpath.join(self._folder, path))
        if inside != self._folder and not inside.startswith(self._folder + b"/"):
            raise asyncssh.SFTPPermissionDenied(f"{os.fsdecode(path)} is outside of the node's folder")
        return inside


async def _run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run one command as sshd does, until the command has ended and no process has its output open."""
    argv = ["/bin/sh"] if process.command is None else ["/bin/sh", "-c", process.command]
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**_login_environment(), **process.env},
        start_new_session=True,
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
    await process.stdout.drain()
    await process.stderr.drain()
    status = await child.wait()
    if status < 0:
        process.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        process.exit(status)


def _login_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in (SPEC_VARIABLE, "PYTHONPATH")}


async def _listen(spec: VmSpec, host_key: asyncssh.SSHKey) -> tuple[asyncssh.SSHAcceptor, str]:
    """Listen on the node's address, or on the next one if that is taken."""
    for attempt in range(ADDRESS_ATTEMPTS):
        address = spec.address(attempt)
        try:
            acceptor = await asyncssh.listen(
                address,
                PORT,
                server_host_keys=[host_key],
                authorized_client_keys=asyncssh.import_authorized_keys(spec.public_key),
                process_factory=_run_command,
                sftp_factory=lambda channel: _NodeFiles(channel, spec.folder),
                encoding=None,
            )
            return acceptor, address
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"{ADDRESS_ATTEMPTS} addresses from {spec.address(0)} on are taken at port {PORT}")


async def _serve(spec: VmSpec) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    acceptor, address = await _listen(spec, host_key)
    info = VmInfo(
        run_id=spec.run_id,
        node=spec.node,
        address=address,
        port=PORT,
        user=USER,
        host_public_key=host_key.export_public_key().decode().strip(),
        pid=os.getppid(),
        started_at=datetime.now(UTC).isoformat(),
        expires_at=spec.expires_at,
    )
    write_atomically(spec.node_file, info.to_json())
    left_s = (spec.expiry - datetime.now(UTC)).total_seconds()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stopped.wait(), timeout=max(left_s, 0.0) + _LATE_S)
    acceptor.close()


def main() -> int:
    # If the supervisor was killed, this process ends the node.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    supervisor = os.getppid()
    # The supervisor blocks these signals for itself, and a child inherits its parent's blocked signals.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    spec = VmSpec.from_environment()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(spec))
    if os.getppid() != supervisor:
        vm.end_everything(spec, except_pid=os.getpid())
    return 0


if __name__ == "__main__":
    sys.exit(main())
