"""`sailor-cloud history`: past runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import json_option

if TYPE_CHECKING:
    from sailor_cloud.run.focus import BilledRun


@click.command(short_help="Show past runs: time, money, outcome.")
@click.option("--job", metavar="NAME", help="Only runs of the job with this name.")
@click.option("--measurements", is_flag=True, help="Write iteration times and memory as CSV; plans learn from them.")
@click.option("--forget", is_flag=True, help="Delete the stored measurements.")
@click.option("--by", type=click.Choice(["owner", "project", "month"]), help="Sum the costs.")
@click.option("--focus", is_flag=True, help="Write the costs as CSV in the format of FOCUS 1.0.")
@json_option
def history(job: str | None, measurements: bool, forget: bool, by: str | None, focus: bool, as_json: bool) -> None:
    """Show the runs that have ended, with planned and actual figures.

    --measurements prints a row for every plan that trained, in the format that benchmarks/simulator_accuracy reads. It
    also keeps the rows on this machine: later plans correct their layer and link times by them, until --forget. A file
    measured_iterations.csv in the folder of --profiles is used first.

    \b
    sailor-cloud history --job first-run
    sailor-cloud history --by owner
    sailor-cloud history --focus > focus.csv
    sailor-cloud history --measurements
    """
    if measurements or forget:
        _measurements(job, forget=forget, as_json=as_json)
        return
    from dataclasses import asdict

    from sailor_cloud import resources
    from sailor_cloud.errors import RequestError
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.cost_text import history_report, sums_report
    from sailor_cloud.report.tables import print_report
    from sailor_cloud.run.focus import focus_csv
    from sailor_cloud.run.history import GroupBy, past_runs, sums

    if focus:
        if by is not None or as_json:
            raise RequestError(
                "--focus writes a row per line of each ledger as CSV; it can be combined only with --job"
            )
        echo(focus_csv(_billed(job)), nl=False)
        return
    runs = past_runs(resources.home() / "runs", job=job)
    if by is not None:
        found = sums(runs, GroupBy(by))
        if as_json:
            echo(json.dumps([asdict(one) for one in found], indent=2))
        else:
            print_report(sums_report(found, by, job=job), result_console())
        return
    if as_json:
        echo(json.dumps([asdict(run) for run in runs], indent=2, default=str))
    else:
        console = result_console()
        if not console.is_terminal:
            # The table has ten columns; in a pipe nothing may be cut off.
            console.width = max(console.width, 160)
        print_report(history_report(runs, job=job), console)


def _billed(job: str | None) -> list[BilledRun]:
    """Return the ended runs whose folders exist; damaged receipts are reported and left out."""
    from sailor_cloud.errors import RequestError
    from sailor_cloud.run.focus import BilledRun
    from sailor_cloud.run.folder import RunFolder, start_time_of
    from sailor_cloud.run.receipt import Receipt

    found = []
    for folder in RunFolder.list(checked=False):
        if not folder.receipt_file.is_file():
            continue
        try:
            folder.check()
            receipt = Receipt.from_json(folder.receipt_file.read_bytes(), origin=str(folder.receipt_file))
            cloud = folder.read_document().job.cloud
        except (RequestError, OSError) as error:
            echo(f"{folder.run_id} is left out: {error}", err=True)
            continue
        if job in (None, receipt.job):
            started_at = start_time_of(folder.run_id) or receipt.written_at
            project = cloud.gcp.project if cloud.gcp is not None else None
            found.append(BilledRun(receipt=receipt, started_at=started_at, owner=cloud.owner, project=project))
    return found


def _measurements(job: str | None, *, forget: bool, as_json: bool) -> None:
    from dataclasses import asdict

    from sailor_cloud.errors import RequestError
    from sailor_cloud.launch.measurements import measured_runs
    from sailor_cloud.workload import own_measurements

    if forget:
        if job is not None or as_json:
            raise RequestError("--forget deletes all measurements; it can't be combined with other options")
        own_measurements.own_file().unlink(missing_ok=True)
        echo("plans use none of your measurements now", err=True)
        return
    found = measured_runs(job=job)
    for run_id, why in found.left_out:
        echo(f"{run_id} is left out: {why}", err=True)
    if as_json:
        echo(json.dumps([asdict(run) for run in found.runs], indent=2))
    else:
        echo(own_measurements.text(found.runs), nl=False)
    if found.runs:
        echo(f"kept in {own_measurements.keep(found.runs)}; plans learn from these runs", err=True)
