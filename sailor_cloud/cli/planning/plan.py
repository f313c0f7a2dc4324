"""`sailor-cloud plan`: the dry run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import (
    BOUNDED_ENGINES,
    ENGINES,
    POSITIVE,
    as_of_option,
    check_output,
    choose_option,
    clock_for,
    cluster_options,
    data_options,
    form_of,
    job_argument,
    json_option,
    read_job,
    write_output,
)
from sailor_cloud.cli.terminal.waiting import Show, waiting
from sailor_cloud.errors import RequestError

if TYPE_CHECKING:
    from sailor_cloud.model.document import Decision, PlanDocument
    from sailor_cloud.model.job import Job

INFEASIBLE = 3
# Where the rest of the report is.
_REST = "'--details' shows the plan's stages, its cost line by line, its memory, and what was compared"
FORMATS = ("table", "json", "markdown", "html")
RESTRICTIONS = ("one-accelerator", "one-zone", "even-batches", "even-layers")


@click.command(short_help="Search for the best plan and show what it costs.")
@job_argument
@cluster_options
@data_options
@as_of_option
@click.option(
    "--restrict",
    "restrictions",
    multiple=True,
    type=click.Choice(RESTRICTIONS),
    help="Search a smaller space to see what the restriction costs; may be given several times.",
)
@click.option("--top", metavar="N", type=click.IntRange(1, 50), help="Also show N plans of other kinds.")
@click.option("--frontier", is_flag=True, help="Also show the Pareto frontier of time and money; HTML always has it.")
@choose_option
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="SECONDS",
    type=POSITIVE,
    help="Stop the search after this many seconds and show the best plan found; it is not called optimal. Starting the "
    "program and writing the report come on top.",
)
@click.option(
    "--prove",
    is_flag=True,
    help="Search for longer, then raise the bound for up to 300 CPU seconds or until Ctrl-C. The bound is for engines "
    f"{' and '.join(BOUNDED_ENGINES)}.",
)
@click.option(
    "--engine", type=click.Choice(ENGINES), default=ENGINES[0], help="The training program that the plan is for."
)
@click.option("--strategy", metavar="NAME", help="Search with a published planner; 'compare' lists them.")
@click.option(
    "--oracle", is_flag=True, help="With --strategy: rank its plans by our simulator, not by its own cost model."
)
@click.option(
    "--details", is_flag=True, help="Show the whole report with price sources, every stage, and the assumptions."
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Output format; by default FILE's ending decides.")
@json_option
@click.option(
    "-o",
    "--output",
    "outputs",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to FILE: .json, .html, .md or .txt; may be given several times.",
)
def plan(
    job_file: Path,
    on: str | None,
    cluster: Path | None,
    as_of: datetime | None,
    restrictions: tuple[str, ...],
    top: int | None,
    frontier: bool,
    choose: str | None,
    time_limit_s: float | None,
    prove: bool,
    engine: str,
    strategy: str | None,
    oracle: bool,
    details: bool,
    form: str | None,
    as_json: bool,
    outputs: tuple[Path, ...],
) -> int:
    """Find the best plan for the job file JOB and show its cost. Buys nothing and needs no account.

    \b
    sailor-cloud plan job.yaml
    sailor-cloud plan job.yaml --json | jq .cost.total_usd
    sailor-cloud plan job.yaml -o plan.json -o report.html
    sailor-cloud plan job.yaml --choose balanced
    sailor-cloud plan job.yaml --restrict one-accelerator --restrict one-zone --top 3
    sailor-cloud plan job.yaml --on slurm --cluster cluster.yaml
    sailor-cloud plan job.yaml -o plan.json && sailor-cloud up job.yaml --plan plan.json
    """
    from dataclasses import asdict

    from sailor_cloud import api, resources
    from sailor_cloud.model.document import Status
    from sailor_cloud.planner.space.restrictions import Restriction

    if as_json and form not in (None, "json"):
        raise RequestError(f"--json and --format {form} ask for two formats; give one of them")
    for path in outputs:
        check_output(path)
    asked = "json" if as_json else form
    alone = len(outputs) == 1 and form is not None
    forms: dict[Path | None, str] = {path: form_of(path, asked, alone=alone) for path in outputs}
    if as_json or not outputs:
        forms[None] = asked or "table"
    if prove and (strategy is not None or time_limit_s is not None or engine not in BOUNDED_ENGINES):
        allowed = " or ".join(BOUNDED_ENGINES)
        raise RequestError(f"--prove excludes --strategy and --time-limit, and needs engine {allowed}")
    job = read_job(job_file, on=on, cluster=cluster)
    with waiting("searching for the best plan") as show:
        document = api.plan(
            job,
            base=job_file.parent,
            clock=clock_for(as_of),
            restrictions=[Restriction(name) for name in restrictions],
            top=top or 0,
            frontier=frontier or ("html" in forms.values() and strategy is None),
            choose=choose,
            time_limit_s=time_limit_s,
            prove=prove,
            deciding=first_screen(job, show),
            progress=lambda share: show(share, 1.0),
            improved=best_so_far(show),
            strategy=strategy,
            oracle=oracle,
            engine=engine,
        )
    for place, chosen in forms.items():
        if place is None and chosen == "table":
            continue
        with waiting("writing the report") as show:
            written = _written(document, chosen, base=job_file.parent, details=details, show=show)
        write_output(place, written)
    if asked in (None, "table") and not (outputs and asked):
        from sailor_cloud.report.console import result_console
        from sailor_cloud.report.plan.plan_text import print_plan

        # On a terminal, the rest of the report would push the decision out of sight.
        brief = sys.stdout.isatty() and not details and document.decision is not None
        rest = "" if outputs else _REST
        print_plan(document, result_console(), details=details, whole=not outputs and not brief, rest=rest)
    if outputs:
        echo(f"wrote {', '.join(map(str, outputs))}", err=True)
        saved = next((path for path in outputs if forms[path] == "json"), None)
        if saved is not None and document.plan is not None and engine == ENGINES[0]:
            given = {"on": on, "cluster": cluster, **asdict(resources.folders())}
            options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
            command = shlex.join(["sailor-cloud", "up", str(job_file), *options, "--plan", str(saved)])
            echo(f"next: {command}  # carries out exactly this plan", err=True)
    return INFEASIBLE if document.status is Status.INFEASIBLE else 0


def first_screen(job: Job, show: Show) -> Callable[[Decision], None] | None:
    """Return a function that shows the choices so far during a search; None if they would be invisible."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        return None

    def shown(decision: Decision) -> None:
        from sailor_cloud.report.console import progress_console
        from sailor_cloud.report.decision.decision_rows import decision_report

        console = progress_console()
        show.screen(decision_report(job, decision, width=console.width, ascii_only=console.options.ascii_only))

    return shown


def best_so_far(show: Show) -> Callable[[str], None]:
    """Return a function that shows the goal's figure of the best plan so far during a search."""
    return lambda best: show.subject(f"searching for the best plan, so far about {best}")


def _written(document: PlanDocument, form: str, *, base: Path, details: bool, show: Show) -> str:
    match form:
        case "json":
            return document.to_json()
        case "markdown":
            from sailor_cloud.report.plan.plan_markdown import plan_as_markdown

            return plan_as_markdown(document)
        case "html":
            from sailor_cloud import api, catalog
            from sailor_cloud.report.html.page import plan_as_html

            if document.plan is None:
                return plan_as_html(document, timeline=())
            show(0, 2, "simulating an iteration for the report")
            predicted = document.prediction is not None
            timeline = api.simulate(document, base=base, timeline=True).timeline if predicted else ()
            show(1, 2, "drawing the report")
            return plan_as_html(document, timeline=timeline, regions=catalog.load().regions())
    from sailor_cloud.report.plan.plan_text import plan_as_text

    return plan_as_text(document, details=details)
