"""`sailor-cloud cost`: what a run has cost."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.options import json_option, run_argument


@click.command(short_help="Show what a run has cost until now and will cost.")
@run_argument()
@json_option
def cost(run: str, as_json: bool) -> None:
    """Show the ledger of RUN, line by line, and what it will come to at its end.

    \b
    sailor-cloud cost RUN
    """
    from dataclasses import asdict

    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.spend.run_costs import run_costs
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.cost_text import cost_report
    from sailor_cloud.report.tables import print_report
    from sailor_cloud.run.folder import RunFolder

    costs = run_costs(RunFolder.open(run), clock=SystemClock())
    if as_json:
        click.echo(json.dumps(asdict(costs), indent=2, default=str))
    else:
        print_report(cost_report(costs), result_console())
