"""`sailor-cloud resume`: takes over a run whose controller has died."""

from __future__ import annotations

import os

import click

from sailor_cloud.cli.runs.following import follow
from sailor_cloud.cli.terminal.options import PRIVATE, data_options, json_option, run_argument


@click.command(short_help="Take over a run whose controller died.")
@run_argument()
@data_options
@click.option(
    "--allow-missing-permissions", is_flag=True, help="Continue even if you lack permissions that the run needs."
)
@json_option
def resume(run: str, allow_missing_permissions: bool, as_json: bool) -> int:
    """Take over RUN after its controller has died, and continue as 'up' does.

    Ranks keep training without a controller; nothing restarts unless a node or a rank was lost. If training has
    ended, this tears the run down and shows the receipt. --pricing, --network and --profiles are those of 'up' unless
    given again.

    \b
    sailor-cloud resume RUN
    """
    from sailor_cloud import api
    from sailor_cloud.run.folder import RunFolder

    os.umask(PRIVATE)
    folder = RunFolder.open(run, unfinished=True)
    return follow(
        lambda observer, clock, on_start: api.resume(
            folder,
            observer,
            clock=clock,
            on_start=on_start,
            allow_missing_permissions=allow_missing_permissions,
        ),
        as_json=as_json,
    )
