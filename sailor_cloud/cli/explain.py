"""`sailor-cloud explain`: why this plan, what was ruled out, and what more of something would bring."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.options import (
    as_of_option,
    clock_for,
    data_options,
    job_argument,
    json_option,
    read_job,
)
from sailor_cloud.cli.waiting import waiting

if TYPE_CHECKING:
    from sailor_cloud.planner.explaining import Explanation

INFEASIBLE = 3


@click.command(short_help="Say why the plan is what it is, and what would change it.")
@job_argument
@data_options
@as_of_option
@json_option
def explain(
    job_file: Path,
    profiles: Path | None,
    network: Path | None,
    pricing: Path | None,
    as_of: datetime | None,
    as_json: bool,
) -> int:
    """Say why the plan of the job file JOB is what it is: where its time goes, which limits hold it back, what was
    ruled out by what, and what more devices, money or zones would bring. Searches once for each such change.

    \b
    sailor-cloud explain job.yaml
    sailor-cloud explain job.yaml --json | jq .gains
    """
    from sailor_cloud import api
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.explanation_text import print_explanation
    from sailor_cloud.workload.this_machine import usable_cores

    job = read_job(job_file)
    with waiting("searching for the best plan") as show:
        found = api.explain(
            job,
            base=job_file.parent,
            clock=clock_for(as_of),
            profiles=profiles,
            network=network,
            pricing=pricing,
            progress=lambda done, of: show(done, of, "searching with one limit loosened after the other"),
            processes=usable_cores(),
        )
    if as_json:
        click.echo(_json(found))
    else:
        print_explanation(found, result_console())
    return 0 if found.feasible else INFEASIBLE


def _json(found: Explanation) -> str:
    return json.dumps(asdict(found), indent=2, ensure_ascii=False)
