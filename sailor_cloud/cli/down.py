"""`sailor-cloud down`: tears a run down."""

from __future__ import annotations

import os

import click

from sailor_cloud.cli.options import PRIVATE, json_option, run_argument


@click.command(short_help="Tear a run down, whatever state it was left in.")
@run_argument()
@json_option
def down(run: str, as_json: bool) -> int:
    """Remove everything that RUN has bought and show its receipt.

    RUN may be shortened to a beginning that fits one run only. Works after the controller has died, and may be
    repeated.

    \b
    sailor-cloud down first-run
    sailor-cloud down RUN --json | jq .resources
    """
    from sailor_cloud.cli.teardown_display import TeardownDisplay
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.down import take_down
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.receipt_text import print_receipt
    from sailor_cloud.run.folder import RunFolder

    os.umask(PRIVATE)
    folder = RunFolder.open(run)
    try:
        with TeardownDisplay() as display:
            receipt = take_down(folder, clock=SystemClock(), on_progress=display.on_progress, say=display.say)
    except KeyboardInterrupt:
        again = f"'sailor-cloud down {folder.run_id}' goes on with it"
        click.echo(f"\nthe teardown is not complete; {again}, and what is left costs until then or its TTL", err=True)
        raise
    if as_json:
        click.echo(receipt.to_json(), nl=False)
    else:
        print_receipt(receipt, result_console())
    return 0 if receipt.clean else 1
