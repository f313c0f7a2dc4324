"""`sailor-cloud history`: past runs."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.options import json_option


@click.command(short_help="Show past runs: time, money, outcome.")
@click.option("--job", metavar="NAME", help="Only runs of the job with this name.")
@json_option
def history(job: str | None, as_json: bool) -> None:
    """Show the runs that have ended, with what was planned beside what came of it.

    \b
    sailor-cloud history --job first-run
    """
    from dataclasses import asdict

    from sailor_cloud import resources
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.cost_text import history_report
    from sailor_cloud.report.tables import print_report
    from sailor_cloud.run.history import past_runs

    runs = past_runs(resources.home() / "runs", job=job)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in runs], indent=2, default=str))
    else:
        console = result_console()
        if not console.is_terminal:
            # Ten columns; in a pipe nothing may be cut off.
            console.width = max(console.width, 160)
        print_report(history_report(runs), console)
