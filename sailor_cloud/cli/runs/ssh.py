"""`sailor-cloud ssh`: logs in to a node."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option, run_argument
from sailor_cloud.errors import LaunchError

if TYPE_CHECKING:
    from sailor_cloud.provision.access.tunnel import Tunnel


@click.command(short_help="Log in to a node of a run.", context_settings={"ignore_unknown_options": True})
@run_argument()
@click.argument("node", required=False)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@json_option
def ssh(run: str, node: str | None, command: tuple[str, ...], as_json: bool) -> None:
    """Log in to NODE of RUN, by default its first one, or run COMMAND there. The host key is the recorded one.

    With --json nobody logs in: the node's address and the whole ssh command are printed.

    \b
    sailor-cloud ssh RUN
    sailor-cloud ssh RUN NODE nvidia-smi
    """
    from sailor_cloud.launch.watch.log_reader import node_of
    from sailor_cloud.run.folder import RunFolder

    folder = RunFolder.open(run)
    target = node_of(folder, node)
    if not as_json and shutil.which("ssh") is None:
        raise LaunchError("there is no ssh on PATH; install the OpenSSH client")
    known_hosts = folder.write_text(
        "known_hosts", f"[{target.address}]:{target.port} {target.host_public_key.strip()}\n"
    )
    arguments = ["ssh", "-F", "/dev/null", "-i", _escaped(str(folder.ssh_key_file)), "-p", str(target.port)]
    for option in (
        "IdentitiesOnly=yes",
        "StrictHostKeyChecking=yes",
        # Without quotes, a space would end the name.
        f'UserKnownHostsFile="{_escaped(str(known_hosts))}"',
        "GlobalKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
        *([f"ProxyCommand={_proxy(target.tunnel)}"] if target.tunnel is not None else []),
    ):
        arguments += ["-o", option]
    arguments = [*arguments, f"{target.user}@{target.address}", *command]
    if as_json:
        where = {"node": target.id, "address": target.address, "port": target.port, "user": target.user}
        echo(json.dumps({**where, "command": arguments}, indent=2))
        return
    os.execvp("ssh", arguments)


def _proxy(tunnel: Tunnel) -> str:
    return _escaped(shlex.join(tunnel.program))


def _escaped(text: str) -> str:
    """Return a text in OpenSSH's form, with % escaped because it marks a placeholder."""
    return text.replace("%", "%%")
