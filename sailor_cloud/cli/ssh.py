"""`sailor-cloud ssh`: logs in to a node."""

from __future__ import annotations

import os
import shutil

import click

from sailor_cloud.cli.options import run_argument
from sailor_cloud.errors import LaunchError


@click.command(short_help="Log in to a node of a run.", context_settings={"ignore_unknown_options": True})
@run_argument()
@click.argument("node", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh(run: str, node: str | None, command: tuple[str, ...]) -> None:
    """Log in to NODE of RUN, by default its first one, or run COMMAND there. The host key is the recorded one.

    \b
    sailor-cloud ssh RUN
    sailor-cloud ssh RUN NODE nvidia-smi
    """
    from sailor_cloud.launch.reading import node_of
    from sailor_cloud.run.folder import RunFolder

    folder = RunFolder.open(run)
    target = node_of(folder, node)
    if shutil.which("ssh") is None:
        raise LaunchError("there is no ssh on PATH; install the OpenSSH client")
    known_hosts = folder.write_text(
        "known_hosts", f"[{target.address}]:{target.port} {target.host_public_key.strip()}\n"
    )
    arguments = ["ssh", "-F", "/dev/null", "-i", str(folder.ssh_key_file), "-p", str(target.port)]
    for option in (
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={known_hosts}",
        "GlobalKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
    ):
        arguments += ["-o", option]
    os.execvp("ssh", [*arguments, f"{target.user}@{target.address}", *command])
