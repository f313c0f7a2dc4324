"""`sailor-cloud down`: tears a run down."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import PRIVATE, json_option, run_argument

if TYPE_CHECKING:
    from sailor_cloud.run.folder import RunFolder


@click.command(short_help="Tear a run down, in whatever state it is.")
@run_argument()
@click.option("--project", "projects", multiple=True, metavar="ID", help="Also search this Google Cloud project.")
@click.option("--region", "regions", multiple=True, metavar="REGION", help="Also search this AWS region.")
@json_option
def down(run: str, projects: tuple[str, ...], regions: tuple[str, ...], as_json: bool) -> int:
    """Remove everything that RUN has bought and show its receipt.

    RUN may be a unique prefix. Works after the controller has died, without the files in the run's folder, and may be
    repeated. Exits with 1 unless everything is confirmed gone.

    \b
    sailor-cloud down first-run
    sailor-cloud down RUN --json | jq .resources
    sailor-cloud down RUN --project my-project --region us-east-1   if its own files are lost
    """
    from sailor_cloud.cli.terminal.bars import TeardownDisplay
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.down import take_down
    from sailor_cloud.provision.scopes import scopes_named
    from sailor_cloud.provision.terraform.progress import ProvisionInterrupted
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.run.receipt_text import print_receipt
    from sailor_cloud.run.folder import RunFolder

    os.umask(PRIVATE)
    folder = RunFolder.open(run)
    also = scopes_named("project", projects) | scopes_named("region", regions)
    try:
        with TeardownDisplay() as display:
            receipt = take_down(
                folder, clock=SystemClock(), on_progress=display.on_progress, say=display.say, also=also
            )
    except (KeyboardInterrupt, ProvisionInterrupted):
        again = f"'sailor-cloud down {folder.run_id}' continues with it"
        echo(f"\nthe teardown is not complete; {again}; what is left costs money until then or its TTL", err=True)
        raise
    show_unwritten(folder)
    if as_json:
        echo(receipt.to_json(), nl=False)
    else:
        print_receipt(receipt, result_console())
    return 0 if receipt.clean else 1


def show_unwritten(folder: RunFolder) -> None:
    """Print on stderr the lines that could not be written to the run's files."""
    from sailor_cloud.run.appended import kept_lines

    for path in (folder.journal_file, folder.ledger_file):
        for line in kept_lines(path):
            echo(f"{path.name}: {line}", err=True)
