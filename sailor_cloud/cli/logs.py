"""`sailor-cloud logs`: what the ranks of a run have written."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.options import json_option, run_argument
from sailor_cloud.errors import RequestError


@click.command(short_help="Show what the ranks of a run have written.")
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is torn down.")
@click.option("--node", metavar="NODE", help="Only this node.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="Only this rank.")
@json_option
def logs(run: str, follow: bool, node: str | None, rank: int | None, as_json: bool) -> None:
    """Show the logs of RUN, from its nodes while they live and from the run's folder afterwards.

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
            click.echo(f"{where} {log.removesuffix('.log')}: {line}")

    asyncio.run(show_logs(RunFolder.open(run), Selection(node=node, rank=rank), show, follow=follow))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
