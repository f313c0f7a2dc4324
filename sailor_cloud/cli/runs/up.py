"""`sailor-cloud up`: plan, confirm, buy, train, tear down, receipt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.planning.plan import INFEASIBLE, best_so_far, first_screen
from sailor_cloud.cli.runs.following import follow
from sailor_cloud.cli.terminal.options import (
    POSITIVE,
    PRIVATE,
    choose_option,
    cluster_options,
    data_options,
    job_argument,
    json_option,
    read_document,
    read_job,
    with_constraints,
)
from sailor_cloud.cli.terminal.waiting import waiting
from sailor_cloud.errors import RequestError
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from sailor_cloud.model.document import PlanDocument

DECLINED = 1
# In a dry run, no address stands for the caller's.
_NOBODY = "0.0.0.0/32"


@click.command(short_help="Plan, buy, train, tear down, and show the receipt.")
@job_argument
@cluster_options
@data_options
@click.option(
    "--plan",
    "plan_file",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Run the plan that 'plan -o' wrote to FILE instead of searching; its figures are recomputed.",
)
@choose_option
@click.option("--budget", metavar="USD", type=POSITIVE, help="Replace the job's budget.")
@click.option("--deadline", metavar="TIME", help="Replace the job's deadline, for example 12h.")
@click.option("--dry-run", is_flag=True, help="Show what would be created, with prices; create nothing.")
@click.option("--terraform-plan", is_flag=True, help="With --dry-run: add Terraform's own plan; needs its providers.")
@click.option(
    "--ssh-from",
    metavar="CIDR",
    help="Your address; cloud nodes accept SSH only from it. A dry run without it shows 0.0.0.0/32.",
)
@click.option("--allow-doubtful", is_flag=True, help="Buy on a cloud even if prices of the plan are doubtful.")
@click.option("--allow-missing-permissions", is_flag=True, help="Buy even if you lack permissions that the run needs.")
@click.option("--allow-stale", is_flag=True, help="Buy on a cloud even if prices of the plan are stale.")
@click.option(
    "--no-fallback", is_flag=True, help="End the run if this plan's nodes are unavailable; use no other plan."
)
@click.option(
    "--replan-slow-links",
    is_flag=True,
    help="Re-plan when links measure more than 30 % below their profile; by default this is only reported.",
)
@click.option("--buy-reserved", is_flag=True, help="Buy the plan's reservations and capacity blocks without asking.")
@click.option("--yes", is_flag=True, help="Do not ask before buying nodes.")
@json_option
def up(
    job_file: Path,
    on: str | None,
    cluster: Path | None,
    plan_file: Path | None,
    choose: str | None,
    budget: float | None,
    deadline: str | None,
    dry_run: bool,
    terraform_plan: bool,
    ssh_from: str | None,
    allow_stale: bool,
    allow_doubtful: bool,
    allow_missing_permissions: bool,
    no_fallback: bool,
    replan_slow_links: bool,
    buy_reserved: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Plan the job file JOB, buy the nodes, train, and tear everything down.

    With --json, stdout holds only the receipt, or an infeasible plan. With --dry-run as well, it holds the plan, the
    rendered variables and the resources with their prices.
    Ctrl-C tears down and exits with 130. A second Ctrl-C leaves the run for 'sailor-cloud down RUN'.

    \b
    sailor-cloud up job.yaml
    sailor-cloud up job.yaml --budget 50 --deadline 12h --yes
    sailor-cloud up job.yaml --plan plan.json --choose balanced
    sailor-cloud up job.yaml --dry-run
    sailor-cloud up job.yaml --on slurm --cluster cluster.yaml
    sailor-cloud up job.yaml --plan plan.json --buy-reserved
    """
    from sailor_cloud import api
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.fleet.code import described
    from sailor_cloud.model.document import Status
    from sailor_cloud.provision.checks.before_buying import check_before_buying
    from sailor_cloud.provision.dry_run import checked_source
    from sailor_cloud.report.console import progress_console, result_console
    from sailor_cloud.report.plan.plan_text import print_plan

    os.umask(PRIVATE)
    source = checked_source(ssh_from)
    if dry_run and source is None:
        source = _NOBODY
    if terraform_plan and not dry_run:
        raise RequestError("--terraform-plan belongs to --dry-run; give both to see Terraform's plan")
    if replan_slow_links and no_fallback:
        raise RequestError(
            "--replan-slow-links may switch to another plan, which --no-fallback forbids; give one of them"
        )
    document = _document(
        job_file,
        plan_file,
        choose,
        budget,
        deadline,
        source,
        on,
        cluster,
        dry_run,
        asks=not yes,
        allow_stale=allow_stale,
    )
    print_plan(document, progress_console() if as_json else result_console())
    if document.status is Status.INFEASIBLE:
        if as_json:
            echo(document.to_json(), nl=False)
        return INFEASIBLE
    if dry_run:
        _show_dry_run(document, job_file.parent, source, with_terraform=terraform_plan, as_json=as_json)
        return 0
    check_before_buying(
        document,
        clock=SystemClock(),
        ssh_from=source,
        allow_stale=allow_stale,
        allow_doubtful=allow_doubtful,
        allow_missing_permissions=allow_missing_permissions,
        buy_reserved=buy_reserved or (sys.stdin.isatty() and not yes),
        tell=_echo_note,
    )
    if (note := api.model_note(document.job, base=job_file.parent)) is not None:
        _echo_note(note)
    if (files := described(document.job, job_file.parent)) is not None:
        echo(files, err=True)
    if not _confirmed_all(document, buy_reserved=buy_reserved, yes=yes):
        return DECLINED
    return follow(
        lambda observer, clock, on_start: api.up(
            document,
            observer,
            base=job_file.parent,
            clock=clock,
            on_start=on_start,
            fallback=not no_fallback,
            replan_slow_links=replan_slow_links,
            ssh_from=source,
            allow_doubtful=allow_doubtful,
            allow_missing_permissions=allow_missing_permissions,
            checked=True,
        ),
        as_json=as_json,
    )


def _show_dry_run(
    document: PlanDocument, base: Path, ssh_from: str | None, *, with_terraform: bool, as_json: bool
) -> None:
    """Print the job of a scheduler, or Terraform's input."""
    from sailor_cloud.cli.terminal.dry_run import show_dry_run
    from sailor_cloud.launch.fleet.job_artefact import job_text

    text = job_text(document, base=base)
    if text is None:
        show_dry_run(document, ssh_from=ssh_from, with_terraform=with_terraform, as_json=as_json)
    else:
        echo(json.dumps({"plan": document.to_dict(), "job": text}, indent=2) if as_json else text)


def _confirmed_all(document: PlanDocument, *, buy_reserved: bool, yes: bool) -> bool:
    """Ask for everything that was not confirmed beforehand; without consent, report that nothing is bought."""
    try:
        agreed = (buy_reserved or _reserved_confirmed(document)) and (yes or _confirmed(document))
    except click.Abort:
        echo("\nnothing was bought", err=True)
        raise
    if not agreed:
        echo("nothing was bought", err=True)
    return agreed


def _document(
    job_file: Path,
    plan_file: Path | None,
    choose: str | None,
    budget: float | None,
    deadline: str | None,
    ssh_from: str | None,
    on: str | None,
    cluster: Path | None,
    dry_run: bool,
    *,
    asks: bool,
    allow_stale: bool,
) -> PlanDocument:
    from sailor_cloud import api
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.launch.start import check_job
    from sailor_cloud.provision.checks.before_buying import check_before_searching, faults_beside
    from sailor_cloud.provision.guards import refuse_what_cannot_run
    from sailor_cloud.provision.providers import is_cloud
    from sailor_cloud.provision.rendering.rendered_roots import missing_from_request
    from sailor_cloud.resources import writable_home
    from sailor_cloud.workload.models.hub import pinned_as

    job = read_job(job_file, on=on, cluster=cluster)
    changes = {name: value for name, value in (("budget_usd", budget), ("deadline", deadline)) if value is not None}
    if changes:
        job = with_constraints(job, changes)
    if plan_file is None:
        # A search may take a minute, so what every plan needs is checked before it.
        clouds = all(is_cloud(entry.provider) for entry in job.resources)
        if clouds and (missing := missing_from_request(job, ssh_from)):
            raise RequestError(faults_beside(missing, job, clock=SystemClock(), allow_stale=allow_stale or dry_run))
        if not dry_run:
            if asks:
                _check_terminal()
            check_job(job, job_file.parent)
            writable_home()
            check_before_searching(job, clock=SystemClock(), allow_stale=allow_stale, tell=_echo_note)
        with waiting("searching for the best plan") as show:
            return api.plan(
                job,
                base=job_file.parent,
                choose=choose,
                deciding=first_screen(job, show),
                progress=lambda share: show(share, 1.0),
                improved=best_so_far(show),
            )
    document = read_document(plan_file)
    # A plan contains the commits of the job's models and data on the Hub.
    job = pinned_as(job, document.job)
    if document.job != job:
        options = " and ".join(f"--{name.removesuffix('_usd')}" for name in changes)
        described = f"{job_file} with {options} describes" if changes else f"{job_file} now describes"
        first = f"set the limit in {job_file}, then " if changes else ""
        raise RequestError(
            f"{plan_file} was made for another job than {described}; "
            f"{first}write it again with 'sailor-cloud plan {job_file} -o {plan_file}'"
        )
    if choose is not None:
        document = api.choose(document, choose, base=job_file.parent)
    refuse_what_cannot_run(document)
    if document.plan is None:
        return document
    checked = api.verify(document, base=job_file.parent)
    for difference in checked.differences:
        echo(f"note: {plan_file}: {difference}", err=True)
    return checked.document


def _echo_note(note: str) -> None:
    echo(f"note: {note}", err=True)


def _check_terminal() -> None:
    if not sys.stdin.isatty():
        raise RequestError("there is no terminal to ask on; give --yes to buy without being asked")


def _reserved_confirmed(document: PlanDocument) -> bool:
    """Show the total price of separately bought capacity, and ask for it separately; True if there is none."""
    from datetime import UTC, datetime, timedelta

    from sailor_cloud.provision.checks.capacity_check import bought_separately

    apart = bought_separately(document, datetime.now(UTC) + timedelta(seconds=document.ttl_s or 0.0))
    for one in apart:
        echo(f"bought separately from nodes: {one}", err=True)
    total = sum(one.usd for one in apart)
    return not apart or click.confirm(f"Buy this capacity for {usd_text(total)} USD?", err=True)


def _confirmed(document: PlanDocument) -> bool:
    from sailor_cloud.report.plan.money import unlimited_usd, until_shutdown_usd

    cost = document.cost
    assert cost is not None
    _check_terminal()
    worst = f", at worst {usd_text(cost.worst_case_usd)} USD" if cost.worst_case_usd is not None else ""
    if (most := unlimited_usd(document)) is not None:
        worst += f", and up to {usd_text(most)} USD without a controller to stop at the budget"
    elif not worst and (most := until_shutdown_usd(document)) is not None:
        worst = f", at most {usd_text(most)} USD until they shut themselves down"
    elif not worst and document.ttl_s is None and cost.usd_per_hour > 0.0:
        worst = ", with neither a budget nor a deadline that ends them"
    return click.confirm(f"Buy these nodes at {usd_text(cost.usd_per_hour)} USD/h{worst}?", err=True)
