"""`sailor-cloud explain`: why this plan, why not another, and what more resources would bring."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.planning.plan import first_screen
from sailor_cloud.cli.terminal.options import (
    JOB_FILE,
    POSITIVE,
    as_of_option,
    clock_for,
    cluster_options,
    data_options,
    json_option,
    read_document,
    read_job,
    refuse_on_a_plan,
)
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.errors import Problem, RequestError

if TYPE_CHECKING:
    from sailor_cloud.model.document import LeftOut, PlanDocument
    from sailor_cloud.model.job import Job
    from sailor_cloud.planner.explaining import Explanation
    from sailor_cloud.planner.marginal import Gain

INFEASIBLE = 3


@click.command(short_help="Explain a plan: its limits, what it leaves out, what would improve it.")
@click.argument("what", metavar="JOB|PLAN", type=JOB_FILE)
@click.option(
    "--why-not",
    metavar="NAME",
    help="Show only the price of insisting on this accelerator, zone, market or cloud.",
)
@cluster_options
@click.option(
    "--time-limit",
    "time_limit_s",
    metavar="SECONDS",
    type=POSITIVE,
    help="Stop all searches after this many seconds and show the findings; starting the program comes on top.",
)
@data_options
@as_of_option
@json_option
def explain(
    what: Path,
    why_not: str | None,
    on: str | None,
    cluster: Path | None,
    time_limit_s: float | None,
    as_of: datetime | None,
    as_json: bool,
) -> int:
    """Explain the plan of a job file, or a plan that 'plan -o' wrote.

    Shows where the time goes, which limits bind, what the plan leaves out and why, and what more devices, money or
    zones would bring. A job file is planned first. A plan file is not searched again: its figures are recomputed, and
    its claims about proof and other plans are ignored.

    \b
    sailor-cloud explain job.yaml
    sailor-cloud explain plan.json
    sailor-cloud explain job.yaml --why-not H100-80
    sailor-cloud explain plan.json --json | jq .gains
    """
    from sailor_cloud import api
    from sailor_cloud.model.document import holds_plan
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.plan.explanation_text import print_gain, print_reasons, print_rest

    given = read_document(what) if holds_plan(what) else None
    if given is not None:
        refuse_on_a_plan(what, on, cluster)
        given.check_offers()
    job = read_job(what, on=on, cluster=cluster) if given is None else given.job
    clock = None if as_of is None and given is not None else clock_for(as_of)
    if why_not is not None:
        _check_named(job, why_not)
    console = result_console()
    planned_as: list[PlanDocument] = []
    changes: int | None = None
    with waiting("searching for the best plan") as show:

        def planned(document: PlanDocument, so_far: Explanation) -> None:
            planned_as.append(document)
            if not as_json and why_not is None:
                print_reasons(so_far, console)
                echo()

        def found(gain: Gain) -> None:
            if not as_json:
                print_gain(gain, console)

        def searching(done: int, of: int) -> None:
            nonlocal changes
            changes = of
            show(done, of, "searching for what more of each thing would bring")

        explanation = api.explain(
            job if given is None else given,
            clock=clock,
            progress=searching,
            deciding=None if why_not is not None else first_screen(job, show),
            planned=planned,
            found=found,
            with_gains=why_not is None,
            time_limit_s=time_limit_s,
            base=what.parent,
        )
    if why_not is not None:
        return _answer(explanation, planned_as[0], why_not, as_json=as_json)
    if as_json:
        echo(_json(explanation))
    else:
        print_rest(len(explanation.gains), changes, console)
    return 0 if explanation.feasible else INFEASIBLE


def _names(job: Job) -> list[str]:
    """Return the names in a job that a plan may leave out."""
    every = [
        name
        for entry in job.resources
        for name in (*entry.accelerators, *entry.zones, *(m.value for m in entry.markets), str(entry.provider))
    ]
    return list(dict.fromkeys(every))


def _check_named(job: Job, name: str) -> None:
    from sailor_cloud import catalog
    from sailor_cloud.catalog.catalog import did_you_mean, similar_names

    names = _names(job)
    if name in names:
        return
    prices = catalog.load()
    there = () if similar_names(name, names) else similar_names(name, prices.accelerator_names())[:3]
    if not there:
        hint = did_you_mean(name, names)
        raise RequestError([Problem(path=f"--why-not {name}", message="the job does not name it", hint=hint)])
    sold = [
        f"{each} is offered by {' and '.join(sorted({offer.provider for offer in prices.offers(accelerators=[each])}))}"
        for each in there
    ]
    add = "it" if len(there) == 1 else "one"
    message = f"the job does not allow {' or '.join(there)}; add {add} under 'resources'"
    hint = f"{', '.join(sold)}; the job names {', '.join(names)}"
    raise RequestError([Problem(path=f"--why-not {name}", message=message, hint=hint)])


def _answer(explanation: Explanation, document: PlanDocument, name: str, *, as_json: bool) -> int:
    """Print the cost of insisting on something, or that the plan uses it."""
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.plan.explanation_text import left_out_rows
    from sailor_cloud.report.tables import print_report

    if document.plan is None:
        reason = document.infeasibility
        echo(f"no plan meets the constraints: {reason.message if reason else 'infeasible'}", err=True)
        return INFEASIBLE
    if document.decision is None:
        raise RequestError("the job can't buy the plan's nodes today; plan again to compare it with others")
    rows = [row for row in explanation.left_out if row.name == name]
    if as_json:
        echo(json.dumps([_row(row) for row in rows], indent=2, ensure_ascii=False))
    elif rows:
        print_report(left_out_rows(rows, explanation.verdict), result_console())
    else:
        echo(f"the plan uses {name}")
    return 0


def _json(found: Explanation) -> str:
    content = asdict(found) | {"left_out": [_row(row) for row in found.left_out]}
    return json.dumps(content, indent=2, ensure_ascii=False)


def _row(row: LeftOut) -> dict[str, Any]:
    """Return something left out without its plan, which a plan document has."""
    return {name: value for name, value in asdict(row).items() if name != "plan"}
