"""`sailor-cloud compare`: published planners and ours, on one job."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import (
    ENGINES,
    POSITIVE,
    as_of_option,
    check_output,
    clock_for,
    cluster_options,
    data_options,
    form_of,
    job_argument,
    json_option,
    read_job,
    write_output,
)
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.errors import RequestError

if TYPE_CHECKING:
    from sailor_cloud.planner.strategies import Contender


@click.command(short_help="Compare our plan of a job with those of published planners.")
@job_argument
@cluster_options
@data_options
@as_of_option
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    help="The training program whose simulator judges all plans.",
)
@click.option("--strategies", metavar="NAMES", help="Only these, with commas between them, for example metis,amp.")
@click.option("--no-oracle", is_flag=True, help="Leave out the rows in which our simulator ranks their plans.")
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="SECONDS",
    type=POSITIVE,
    help="Stop each search after this many seconds.",
)
@click.option("--format", "form", type=click.Choice(["table", "json", "markdown", "html"]), help="Output format.")
@json_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to FILE: .json, .html, .md or .txt.",
)
def compare(
    job_file: Path,
    on: str | None,
    cluster: Path | None,
    as_of: datetime | None,
    engine: str,
    strategies: str | None,
    no_oracle: bool,
    time_limit_s: float | None,
    form: str | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Compare our plan of the job file JOB with those of eleven published planners. Our simulator judges all of them.

    Each planner's first row is the plan that its own cost model ranks first among those that fit. Its row 'oracle' is
    the best of the same plans by our simulator. The two rows separate a small search space from a wrong model.

    \b
    sailor-cloud compare job.yaml
    sailor-cloud compare job.yaml --strategies metis,atlas -o comparison.html
    """
    from sailor_cloud import api
    from sailor_cloud.planner.strategies import compared
    from sailor_cloud.report.comparison.planners import as_html, as_json_text, as_markdown, as_text, found_line, report
    from sailor_cloud.report.console import progress_console, result_console
    from sailor_cloud.report.tables import print_report

    check_output(output)
    asked = "json" if as_json else form
    forms: dict[Path | None, str] = {}
    if output is not None:
        forms[output] = form_of(output, asked, alone=form is not None)
    if as_json or output is None:
        forms[None] = asked or "table"
    job = read_job(job_file, on=on, cluster=cluster)
    names = [name.strip() for name in strategies.split(",") if name.strip()] if strategies is not None else []
    if strategies is not None and not names:
        raise RequestError("--strategies names no planner; leave it out to compare all")
    rows: list[Contender] = []
    with waiting("planning") as show:

        def row_found(row: Contender) -> None:
            rows.append(row)
            if sys.stderr.isatty():
                show.screen(report(compared(job.name, rows[0], rows[1:]).contenders, width=progress_console().width))
            else:
                echo(found_line(row), err=True)

        found = api.compare(
            job,
            strategies=names,
            oracle=not no_oracle,
            progress=lambda done, of, what: show(done, of, f"planning as {what}"),
            found=row_found,
            base=job_file.parent,
            clock=clock_for(as_of),
            engine=engine,
            time_limit_s=time_limit_s,
        )
    write = {"json": as_json_text, "markdown": as_markdown, "html": as_html, "table": as_text}
    for place, chosen in forms.items():
        if place is None and chosen == "table":
            console = result_console()
            print_report(report(found.contenders, width=console.width), console)
        else:
            write_output(place, write[chosen](found))
    return 0
