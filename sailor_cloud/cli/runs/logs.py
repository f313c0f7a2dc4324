"""`sailor-cloud logs`: the output of a run's ranks."""

from __future__ import annotations

import json
import re

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option, run_argument
from sailor_cloud.errors import RequestError

# Escape sequences that only set colours.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@click.command(short_help="Show the output of a run's ranks.")
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the run is torn down.")
@click.option("--node", metavar="NODE", help="Only this node.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only this rank.")
@json_option
def logs(run: str, follow: bool, node: str | None, rank: int | None, as_json: bool) -> None:
    """Show the logs of RUN, from its nodes while they live and from the run's folder afterwards.

    Of each log, the last 8 MiB are shown; the folder keeps the last 32 MiB.

    \b
    sailor-cloud logs RUN --rank 0
    sailor-cloud logs RUN -f --node NODE
    sailor-cloud logs RUN --json | jq -r .[].line
    """
    import asyncio

    from sailor_cloud.launch.watch.log_reader import Selection, show_logs
    from sailor_cloud.run.folder import RunFolder

    if follow and as_json:
        raise RequestError("--follow shows lines as they come and --json is one document; give one of them")
    rows: list[dict[str, str]] = []

    def show(where: str, log: str, line: str) -> None:
        if as_json:
            rows.append({"node": where, "log": log, "line": line})
        else:
            echo(f"{where} {log.removesuffix('.log')}: {_as_shown(line)}")

    asyncio.run(show_logs(RunFolder.open(run), Selection(node=node, rank=rank), show, follow=follow))
    if as_json:
        echo(json.dumps(rows, indent=2))


def _as_shown(line: str) -> str:
    """Return a line without colours; of a progress bar that was redrawn, only its last state."""
    return _COLOURS.sub("", line).rstrip("\r").rpartition("\r")[2]
