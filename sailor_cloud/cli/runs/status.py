"""`sailor-cloud status`: runs and their progress."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option, run_argument


@click.command(short_help="Show runs and their progress.")
@run_argument(required=False)
@json_option
def status(run: str | None, as_json: bool) -> int:
    """Show all runs, or RUN with its resources; exits with 1 if files of RUN are damaged.

    \b
    sailor-cloud status
    sailor-cloud status RUN --json
    """
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.watch.status import run_status, status_of, status_to_dict
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.status_text import run_report, runs_report
    from sailor_cloud.report.tables import print_report
    from sailor_cloud.run.folder import RunFolder, runs_root

    clock = SystemClock()
    if run is not None:
        one = run_status(RunFolder.open(run), clock=clock)
        if as_json:
            echo(json.dumps(status_to_dict(one), indent=2))
        else:
            print_report(run_report(one, now=clock.now()), result_console())
        return 1 if one.damage else 0
    every = [status_of(folder, clock=clock) for folder in RunFolder.list(checked=False)]
    if as_json:
        echo(json.dumps([status_to_dict(one) for one in every], indent=2))
    else:
        console = result_console()
        shown = runs_report(every, now=clock.now(), width=console.width, folder=runs_root())
        print_report(shown, console)
    return 0
