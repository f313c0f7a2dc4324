"""`sailor-cloud cost`: the cost of a run."""

from __future__ import annotations

import json

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option, run_argument


@click.command(short_help="Show what a run has cost and will cost.")
@run_argument()
@click.option("--actual", is_flag=True, help="Also show what the cloud has billed for the run's tag.")
@json_option
def cost(run: str, actual: bool, as_json: bool) -> int:
    """Show the ledger of RUN, line by line, and its projected total. Exits with 1 if files of the run are damaged.

    \b
    sailor-cloud cost RUN
    sailor-cloud cost RUN --actual
    """
    from dataclasses import asdict

    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.spend.run_costs import run_costs
    from sailor_cloud.provision.checks.account_check import fetch_bills
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.cost_text import bill_report, cost_report
    from sailor_cloud.report.tables import print_report
    from sailor_cloud.run.folder import RunFolder

    folder, clock = RunFolder.open(run), SystemClock()
    costs = run_costs(folder, clock=clock)
    if as_json:
        bills = fetch_bills(folder, clock=clock) if actual else None
        result = asdict(costs) | ({} if bills is None else {"actual": [asdict(bill) for bill in bills]})
        echo(json.dumps(result, indent=2, default=str))
        return 1 if costs.damage else 0
    print_report(cost_report(costs), result_console())
    if actual:
        print_report(bill_report(fetch_bills(folder, clock=clock), costs.spent_usd), result_console())
    return 1 if costs.damage else 0
