"""`sailor-cloud quota`: what the account may buy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import (
    JOB_FILE,
    ProviderName,
    cloud_of,
    cluster_options,
    json_option,
    look_up_argument,
    providers_with_account,
    read_job,
)
from sailor_cloud.cli.terminal.waiting import waiting

if TYPE_CHECKING:
    from rich.console import Console

    from sailor_cloud.catalog.account.quotas import QuotaNeed
    from sailor_cloud.catalog.account.reservations import Reservations
    from sailor_cloud.catalog.quota_needs import Quotas
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.model.offer import Provider


@click.command(short_help="Show what the account may buy, against what a job needs.")
@click.argument("job_file", metavar="[JOB]", type=JOB_FILE, required=False)
@cluster_options
@click.option("--provider", type=ProviderName(providers_with_account), help="Without a job: the provider.")
@click.option(
    "--region", "regions", multiple=True, metavar="REGION", help="Without a job: a region; may be given several times."
)
@click.option("--project", metavar="ID", help="Google Cloud project; default: the job's, then GOOGLE_CLOUD_PROJECT.")
@click.option("--forget", is_flag=True, help="Delete the stored limits; plans then have none.")
@json_option
def quota(
    job_file: Path | None,
    on: str | None,
    cluster: Path | None,
    provider: Provider | None,
    regions: tuple[str, ...],
    project: str | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Show the quotas that JOB's resources fall under, the account's limits, and the most that the job may use.

    Without a job, shows every accelerator quota of a provider's regions. A quota is not a reservation: a zone may still
    be out of stock. This machine keeps the limits, and plans respect them until they are read again or --forget deletes
    them.

    Also shows the account's reserved capacity in these regions. On-demand nodes of the same type and zone use open
    reservations. This command neither buys nor cancels any.

    \b
    sailor-cloud quota job.yaml
    sailor-cloud quota --provider aws --region us-east-1
    """
    from sailor_cloud.catalog.account import account_quotas
    from sailor_cloud.catalog.account.reservations import read_reservations
    from sailor_cloud.catalog.quota_needs import read_quotas
    from sailor_cloud.cli.inputs.price_tables import as_json as to_json
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.report.console import result_console

    if forget:
        account_quotas.own_file().unlink(missing_ok=True)
        echo("the account's quotas no longer limit plans", err=True)
        return
    wanted, named = _wanted(job_file, provider, regions, on, cluster)
    cloud = cloud_of(project) if project else named
    with waiting("asking the providers for quotas") as show:
        found = read_quotas(
            wanted,
            cloud=cloud,
            progress=lambda done, of, what: show(done, of, f"asking for {what}"),
        )
        reserved = read_reservations(
            [(row.need.provider, row.need.region) for row in found.rows],
            cloud=cloud,
            progress=lambda done, of, what: show(done, of, f"asking for {what}"),
        )
    if any(row.limit is not None for row in found.rows):
        kept = account_quotas.store_limits(found.rows, cloud=cloud, read_on=SystemClock().now().date())
        echo(f"kept in {kept}; plans keep to these limits", err=True)
    if as_json:
        rows = [asdict(row.need) | {"limit": row.limit, "used": row.used, "enough": row.enough} for row in found.rows]
        missing = (*found.missing, *reserved.missing)
        echo(to_json({"quotas": rows, "reserved": [asdict(row) for row in reserved.rows], "missing": missing}))
    else:
        _print(found, result_console())
        _print_reserved(reserved, result_console())


def _wanted(
    job_file: Path | None, provider: Provider | None, regions: tuple[str, ...], on: str | None, cluster: Path | None
) -> tuple[tuple[QuotaNeed, ...], Cloud]:
    from sailor_cloud.catalog import load
    from sailor_cloud.catalog.account.quotas import load_rules
    from sailor_cloud.catalog.job_check import resource_problems
    from sailor_cloud.catalog.quota_needs import all_needs, needs
    from sailor_cloud.errors import RequestError

    # The catalog must know a job's inventory before it is read.
    job = None if job_file is None else read_job(job_file, on=on, cluster=cluster)
    catalog, rules = load(), load_rules()
    if job is None:
        if on is not None or cluster is not None:
            raise RequestError("--on and --cluster belong to a job file; name one")
        if provider is None or not regions:
            raise RequestError("name a job file, or --provider and at least one --region")
        for region in regions:
            look_up_argument(catalog.region, provider, region)
        return all_needs(rules, provider, regions), cloud_of(None)
    if provider is not None or regions:
        raise RequestError("--provider and --region can't be combined with a job file, which names its own")
    problems = resource_problems(job, catalog)
    if problems:
        raise RequestError(problems)
    return needs(job, catalog, rules), job.cloud


def _print(found: Quotas, console: Console) -> None:
    from sailor_cloud.catalog.account.quotas import Counted
    from sailor_cloud.report.tables import plain_table, print_report

    if not found.rows:
        console.print("the job's resources fall under no quota")
        return
    table = plain_table("region", "quota", "for", "left", "needed", "", numbers=("left", "needed"))
    for row in found.rows:
        need = row.need
        verdict = {True: "[green]enough[/]", False: "[red]short[/]", None: "[yellow]unknown[/]"}[row.enough]
        unit = " vCPU" if need.counts is Counted.VCPUS else ""
        table.add_row(
            need.region or "all",
            need.quota,
            ", ".join(need.accelerators),
            "?" if row.limit is None else f"{row.limit - (row.used or 0.0):g}{unit}",
            f"{need.needed:g}{unit}" if need.needed else "-",
            verdict if need.needed else "",
        )
    print_report(table, console)
    for fault in found.missing:
        console.print(f"[red]missing[/] {fault}", soft_wrap=True)
    if any(row.enough is False for row in found.rows):
        console.print("needed: the most that the job may use; a plan may need less")


def _print_reserved(reserved: Reservations, console: Console) -> None:
    from sailor_cloud.report.tables import plain_table, print_report

    if reserved.rows:
        console.print("\nreserved by the account")
        table = plain_table(
            "zone", "reservation", "kind", "instance type", "free", "from", "until", "used by", numbers=("free",)
        )
        for row in reserved.rows:
            start, end = ("" if at is None else f"{at:%Y-%m-%d %H:%M}" for at in (row.starts_at, row.ends_at))
            used = "on-demand nodes" if row.taken_unasked else "what names it"
            free = f"{row.free} of {row.count}"
            table.add_row(row.zone, row.id, row.kind.value, row.instance_type, free, start, end or "cancelled", used)
        print_report(table, console)
        if any(not row.taken_unasked for row in reserved.rows):
            console.print("a reservation that must be named is used only where the job's capacity file names it")
    for fault in reserved.missing:
        console.print(f"[red]missing[/] {fault}", soft_wrap=True)
