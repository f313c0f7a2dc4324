"""Ensures that a node has the packages that ranks need, and returns the interpreter that has them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sailor_cloud.errors import LaunchError
from sailor_cloud.launch.fleet.software import Software

PATIENCE_S = 1800.0
POLL_S = 5.0
_TAIL_LINES = 20


class Shell(Protocol):
    """The part of a connection that preparing needs; see `ssh.NodeConnection`."""

    async def run(self, argv: list[str]) -> str: ...

    async def write(self, path: str, content: bytes) -> None: ...


async def prepared_python(
    shell: Shell,
    software: Software,
    *,
    node: str,
    driver: str | None = None,
    patience_s: float = PATIENCE_S,
    poll_s: float = POLL_S,
) -> str:
    """Return an interpreter of the node that has all packages; missing ones are installed with pip.

    `driver`: see `software.driver_for`.

    The installation continues if the connection breaks; a later call finds it. Raises LaunchError with the end of its
    log if it fails or takes too long.
    """
    script, log = f"software/{software.sha256}.sh", f"software/{software.sha256}.log"
    await shell.write(script, software.script.encode())
    found = await _check(shell, script)
    if found not in ("", "failed"):
        return found
    # If an installation runs already, a second one ends immediately.
    install = f"nohup flock -n {script}.lock sh {script} install {driver or ''} >> {log} 2>&1 < /dev/null &"
    await shell.run(["sh", "-c", f"rm -f {script.removesuffix('.sh')}.failed; {install}"])
    waited = 0.0
    while waited < patience_s:
        await asyncio.sleep(poll_s)
        waited += poll_s
        found = await _check(shell, script)
        if found == "failed":
            break
        if found:
            return found
    tail = await shell.run(["tail", "-n", str(_TAIL_LINES), log])
    how = "failed" if found == "failed" else f"did not end within {patience_s:.0f} s"
    raise LaunchError(f"installing torch {software.torch} on node {node} {how}; its last lines:\n{tail.rstrip()}")


async def _check(shell: Shell, script: str) -> str:
    return (await shell.run(["sh", script, "check"])).strip()
