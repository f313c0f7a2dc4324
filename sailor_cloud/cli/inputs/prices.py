"""`sailor-cloud prices`: the prices behind a plan, where they come from, and newer ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sailor_cloud.cli.echo import echo
from sailor_cloud.cli.terminal.options import (
    NOT_NEGATIVE,
    DataFolder,
    ProviderName,
    as_of_option,
    clock_for,
    cloud_of,
    json_option,
    providers_with_account,
)
from sailor_cloud.model.market import Market, Precision
from sailor_cloud.model.provider import Provider

if TYPE_CHECKING:
    from sailor_cloud.catalog import Catalog

_Command = TypeVar("_Command", bound=Callable[..., Any])

DAY = click.DateTime(["%Y-%m-%d"])
SORTS = ("usd-per-gpu-hour", "usd-per-pflops-hour", "usd-per-hour", "id")
MARKET = click.Choice([market.value for market in Market if not market.has_terms])
PRECISION = click.Choice([precision.value for precision in Precision])


@click.group(short_help="Show, refresh and compare prices.")
def prices() -> None:
    """Show, refresh and compare the prices behind a plan.

    \b
    sailor-cloud prices list --accelerator V100-16 --market spot
    sailor-cloud prices refresh --provider gcp --region us-central1
    sailor-cloud prices diff
    sailor-cloud prices history a2-highgpu-1g --region us-central1
    """


def _filters(command: _Command) -> _Command:
    for option in (
        click.option("--max-usd-per-hour", type=NOT_NEGATIVE, metavar="USD", help="Leave out more expensive offers."),
        click.option("--instance-type", "instance_types", multiple=True, metavar="TYPE"),
        click.option("--market", "markets", multiple=True, type=MARKET),
        click.option("--accelerator", "accelerators", multiple=True, metavar="NAME", help="For example A100-40."),
        click.option("--zone", "zones", multiple=True, metavar="ZONE", help="AWS: zone ids, for example use1-az1."),
        click.option("--region", "regions", multiple=True, metavar="REGION"),
    ):
        command = option(command)
    return command


def _sold_or_compared() -> list[str]:
    from sailor_cloud.catalog.prices.elsewhere import PROVIDERS
    from sailor_cloud.model import provider

    return [*provider.names(), *PROVIDERS]


@prices.command("list", short_help="List offers with price, source and age.")
@_filters
@click.option(
    "--provider",
    metavar="NAME",
    help="A cloud to buy on, or one to compare with: azure, coreweave, lambda, nebius, oci, …",
)
@click.option(
    "--now", is_flag=True, help="With a provider to compare with: ask gpuhunt's catalog, and keep the answer."
)
@click.option("--max-age", type=click.IntRange(0, 36_500), metavar="DAYS", help="Leave out older prices.")
@click.option("--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True)
@click.option(
    "--precision", type=PRECISION, default="fp16", show_default=True, help="Peak rate that usd-per-pflops-hour uses."
)
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Rows of the table; 0: all.")
@click.option("--pricing", type=DataFolder(), metavar="DIR", help="Read another folder of prices.")
@as_of_option
@json_option
def list_(
    max_age: int | None,
    sort: str,
    precision: str,
    limit: int,
    pricing: Path | None,
    as_of: datetime | None,
    as_json: bool,
    provider: str | None,
    now: bool,
    **filters: Any,
) -> None:
    """List offers, cheapest per GPU-hour first. Prices past their date are marked STALE.

    sailor-cloud can't buy from azure, coreweave, lambda, nebius, oci, runpod, vast and verda. It shows their prices per
    GPU for comparison, and 'plan' adds the cheapest in one line.

    \b
    sailor-cloud prices list --accelerator V100-16 --market spot
    """
    from sailor_cloud.catalog import load
    from sailor_cloud.catalog.listing import SortKey, listing
    from sailor_cloud.catalog.prices.elsewhere import PROVIDERS
    from sailor_cloud.cli.inputs import price_tables
    from sailor_cloud.report.console import result_console

    today = clock_for(as_of).now().date()
    if provider is not None or now:
        names = _sold_or_compared()
        if provider not in names:
            raise click.BadParameter(f"{provider!r} is none of {', '.join(names)}", param_hint="--provider")
    if provider is not None and provider in PROVIDERS:
        _list_elsewhere(provider, filters, now=today if now else None, limit=limit, as_json=as_json)
        return
    if now:
        raise click.UsageError("--now is for providers to compare with; 'prices refresh' reads those of the others")
    filters["provider"] = None if provider is None else Provider(provider)
    catalog = load(pricing=pricing)
    rows = listing(
        catalog,
        as_of=today,
        sort=SortKey(sort),
        precision=Precision(precision),
        priced_since=None if max_age is None else today - timedelta(days=max_age),
        **_selected(catalog, filters),
    )
    if as_json:
        echo(price_tables.listing_json(rows))
    else:
        price_tables.print_listing(rows, catalog, SortKey(sort), limit, result_console())


def _list_elsewhere(provider: str, filters: dict[str, Any], *, now: date | None, limit: int, as_json: bool) -> None:
    from dataclasses import asdict

    from sailor_cloud.catalog.prices.elsewhere import PROVIDERS, ask_gpuhunt, prices_elsewhere, store_prices
    from sailor_cloud.cli.inputs import price_tables
    from sailor_cloud.errors import RequestError
    from sailor_cloud.report.console import result_console
    from sailor_cloud.report.decision.elsewhere import elsewhere_report
    from sailor_cloud.report.tables import print_report

    wrong = [
        f"--{name.replace('_', '-').removesuffix('s')}"
        for name in ("regions", "zones", "instance_types")
        if filters[name]
    ]
    if wrong:
        raise RequestError(f"{provider} has only prices per GPU; {' and '.join(wrong)} can't filter them")
    if now is not None:
        echo(f"kept in {store_prices(ask_gpuhunt([provider], now))}; plans compare with these prices", err=True)
    most = filters["max_usd_per_hour"]
    rows = [
        row
        for row in prices_elsewhere()
        if row.provider == provider
        and (not filters["accelerators"] or row.accelerator in filters["accelerators"])
        and (not filters["markets"] or row.market.value in filters["markets"])
        and (most is None or row.usd_per_gpu_hour <= most)
    ]
    if as_json:
        echo(price_tables.as_json([asdict(row) for row in rows]))
    else:
        print_report(elsewhere_report(rows, limit), result_console())
    if not rows and now is None and PROVIDERS[provider] is not None:
        echo(f"--now asks gpuhunt's catalog for prices of {provider}", err=True)


@prices.command("refresh", short_help="Read newer prices from public catalogs or from the providers' APIs.")
@click.option("--provider", "providers", multiple=True, type=ProviderName(providers_with_account))
@click.option("--region", "regions", multiple=True, metavar="REGION", help="Only these regions; default: all.")
@click.option("--project", metavar="ID", help="Google Cloud project to ask with; default: GOOGLE_CLOUD_PROJECT.")
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write all known prices to DIR/offers, for --pricing DIR.",
)
@json_option
def refresh(
    providers: tuple[Provider, ...], regions: tuple[str, ...], project: str | None, output: Path | None, as_json: bool
) -> int:
    """Read newer prices. Needs no account: without credentials they come from SkyPilot's and gpuhunt's public catalogs.

    With --region, the public AWS price list is read too. A price without a date counts as stale. With credentials of a
    provider, its own prices are read instead: the Cloud Billing Catalog and Compute Engine, the AWS Price List and EC2.

    The new prices replace the shipped ones. Prices that can't be read stay as they are, and the command exits with 1.

    \b
    sailor-cloud prices refresh --provider gcp --region us-central1
    """
    from sailor_cloud.catalog.refresh import refresh as run_refresh
    from sailor_cloud.catalog.refresh import write_known
    from sailor_cloud.cli.inputs import price_tables
    from sailor_cloud.cli.terminal.bars import refresh_progress
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.report.console import progress_console, result_console

    with refresh_progress(progress_console()) as progress:
        result = run_refresh(
            providers=providers,
            regions=regions,
            cloud=cloud_of(project),
            clock=SystemClock(),
            progress=progress,
        )
    if output is not None:
        write_known(output)
    if as_json:
        echo(price_tables.refreshed_json(result))
    else:
        price_tables.print_refreshed(result, result_console())
    return 0 if result.complete else 1


@prices.command("diff", short_help="Show price changes between the shipped and the refreshed prices, or two dates.")
@_filters
@click.option("--provider", type=ProviderName())
@click.option(
    "--from", "start", type=DAY, metavar="DATE", help="Prices of the last refresh until this day; default: as shipped."
)
@click.option("--to", "end", type=DAY, metavar="DATE", help="Prices of the last refresh until this day; default: now.")
@click.option("--least", type=NOT_NEGATIVE, default=0.0, metavar="PERCENT", help="Leave out smaller changes.")
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Rows of the table; 0: all.")
@json_option
def diff(start: datetime | None, end: datetime | None, least: float, limit: int, as_json: bool, **filters: Any) -> None:
    """Show which prices moved and by how much, largest move first, and which offers came or went.

    \b
    sailor-cloud prices diff --accelerator A100-40
    """
    from sailor_cloud.catalog import load
    from sailor_cloud.catalog.prices import changes
    from sailor_cloud.cli.inputs import price_tables
    from sailor_cloud.clock import SystemClock
    from sailor_cloud.report.console import result_console

    if start is not None and end is not None and start > end:
        raise click.UsageError(f"--from {start:%Y-%m-%d} is after --to {end:%Y-%m-%d}; exchange them")
    selected = _selected(load(), filters)
    before = changes.offers_known_on(None if start is None else start.date())
    after = changes.offers_known_on(SystemClock().now().date() if end is None else end.date())
    found = changes.diff(
        (offer for offer in before if price_tables.matches(offer, selected)),
        (offer for offer in after if price_tables.matches(offer, selected)),
        least=least / 100,
    )
    if as_json:
        echo(price_tables.diff_json(found))
    else:
        price_tables.print_diff(found, limit, result_console())


@prices.command("history", short_help="Show the price history of an instance type.")
@click.argument("instance_type", metavar="TYPE")
@click.option("--region", "regions", multiple=True, metavar="REGION")
@click.option("--market", type=MARKET)
@click.option("--since", type=DAY, metavar="DATE")
@click.option("--limit", type=click.IntRange(min=0), default=40, show_default=True, help="Rows of the table; 0: all.")
@json_option
def history(
    instance_type: str,
    regions: tuple[str, ...],
    market: str | None,
    since: datetime | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the prices of instance type TYPE by day: the shipped history, the shipped offers, and every refresh.

    \b
    sailor-cloud prices history a2-highgpu-1g --region us-central1
    """
    from sailor_cloud.catalog import load
    from sailor_cloud.catalog.catalog import did_you_mean
    from sailor_cloud.catalog.prices import changes
    from sailor_cloud.cli.inputs import price_tables
    from sailor_cloud.errors import Problem, RequestError
    from sailor_cloud.report.console import result_console

    catalog = load()
    known = catalog.instance_types()
    points = changes.history(
        instance_type,
        regions=_known_regions(catalog, regions),
        market=None if market is None else Market(market),
        since=None if since is None else since.date(),
    )
    if not points and instance_type not in known:
        hint = did_you_mean(instance_type, known)
        raise RequestError([Problem(path="TYPE", message=f"no prices of {instance_type!r}", hint=hint)])
    if as_json:
        echo(price_tables.history_json(points))
    else:
        price_tables.print_history(points, limit, result_console())


def _selected(catalog: Catalog, filters: dict[str, Any]) -> dict[str, Any]:
    """Return the filters that were given, with enums for their values. Raises RequestError for unknown names."""
    from sailor_cloud.catalog.catalog import did_you_mean
    from sailor_cloud.errors import Problem, RequestError

    known = {
        "regions": {region.name for region in catalog.regions()},
        "zones": set(catalog.zones()),
        "accelerators": set(catalog.accelerator_names()),
        "instance_types": set(catalog.instance_types()),
    }
    problems = [
        Problem(path=f"--{field[:-1].replace('_', '-')}", message=f"no {name!r}", hint=did_you_mean(name, names))
        for field, names in known.items()
        for name in filters[field]
        if name not in names
    ]
    if problems:
        raise RequestError(problems)
    selected = {name: value for name, value in filters.items() if value not in (None, ())}
    if "markets" in selected:
        selected["markets"] = [Market(name) for name in selected["markets"]]
    return selected


def _known_regions(catalog: Catalog, regions: tuple[str, ...]) -> tuple[str, ...] | None:
    from sailor_cloud.catalog.catalog import did_you_mean
    from sailor_cloud.errors import Problem, RequestError

    names = {region.name for region in catalog.regions()}
    unknown = [name for name in regions if name not in names]
    if unknown:
        raise RequestError(
            [Problem(path="--region", message=f"no {name!r}", hint=did_you_mean(name, names)) for name in unknown]
        )
    return regions or None
