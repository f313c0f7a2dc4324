"""Tables of prices, changes, history and refreshes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.listing import Listed, SortKey
from sailor_cloud.catalog.prices.changes import PriceChange, PricePoint
from sailor_cloud.catalog.prices.doubts import UNKNOWN_DAY
from sailor_cloud.catalog.refresh.refresh import Refreshed
from sailor_cloud.model.offer import Offer, ZoneConfidence
from sailor_cloud.report.tables import plain_table, print_report
from sailor_cloud.report.text import change, usd

# From WIDE columns on, the offer list has two blanks between its columns; below NARROW it shows only the price that it
# is sorted by.
WIDE, NARROW = 110, 90


def as_json(value: Any) -> str:
    """Return one JSON document; dates and paths become text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def devices(offer: Offer) -> str:
    return f"{offer.accelerator_count}x{offer.accelerator}"


def print_listing(rows: Sequence[Listed], catalog: Catalog, sort: SortKey, limit: int, console: Console) -> None:
    """Print one offer per line, and explain their sources."""
    if not rows:
        console.print("no offer meets these conditions")
        return
    shown = _first(rows, limit)
    compared = "per PFLOPS" if sort is SortKey.USD_PER_PFLOPS_HOUR else "per GPU"
    sorted_by = "USD/h" if sort is SortKey.USD_PER_HOUR else compared
    money = ("USD/h", compared) if console.width >= NARROW else (sorted_by,)
    headings = ("zone", "instance type", "devices", "market", *money, "days old", "price", "seen")
    table = plain_table(*headings, numbers=money, gap=2 if console.width >= WIDE else 1)
    for row in shown:
        offer = row.offer
        table.add_row(
            offer.zone,
            offer.instance_type,
            devices(offer),
            offer.market.value,
            *(_price(row, column) for column in money),
            f"{_age(row)}{' [yellow]STALE[/]' if row.stale else ''}",
            _trust(offer, wide=console.width >= WIDE),
            "yes" if offer.zone_confidence is ZoneConfidence.SEEN else "no",
        )
    print_report(table, console)
    _print_rest(rows, shown, console)
    for source in sorted({row.offer.source for row in shown}):
        days = [row.offer.as_of_from for row in shown if row.offer.source == source]
        console.print(f"source {source}, {min(days)}: {catalog.source(source).citation}", style="dim", soft_wrap=True)
    if any(row.offer.listed is not None for row in shown):
        console.print(
            "*: doubtful; plans count the price shown, not the one listed, and 'up' requires --allow-doubtful"
        )
    console.print("price: confidence of the price; seen: whether a source saw the zone sell the instance type")
    if any(row.stale for row in shown):
        console.print("STALE: older than 90 days, spot 7; renew with 'sailor-cloud prices refresh'")


def _trust(offer: Offer, *, wide: bool) -> str:
    if offer.listed is None:
        return offer.confidence.value
    outlier = " outlier" if offer.outlier else ""
    return f"{offer.confidence}*" + (f"{outlier}, listed {usd(offer.listed.usd_per_hour)}" if wide else outlier)


def _price(row: Listed, column: str) -> str:
    figures = {
        "USD/h": row.offer.usd_per_hour,
        "per GPU": row.usd_per_gpu_hour,
        "per PFLOPS": row.usd_per_pflops_hour,
    }
    value = figures[column]
    return "-" if value is None else usd(value)


def listing_json(rows: Sequence[Listed]) -> str:
    return as_json([asdict(row.offer) | _without_offer(row) for row in rows])


def _without_offer(row: Listed) -> dict[str, Any]:
    return {
        "usd_per_gpu_hour": row.usd_per_gpu_hour,
        "usd_per_pflops_hour": row.usd_per_pflops_hour,
        "age_days": row.age_days,
        "stale": row.stale,
        "interruptions": None if row.interruptions is None else asdict(row.interruptions),
    }


def matches(offer: Offer, selected: Mapping[str, Any]) -> bool:
    """Whether an offer matches the filters of a command."""
    fields = {
        "regions": offer.region,
        "zones": offer.zone,
        "accelerators": offer.accelerator,
        "markets": offer.market,
        "instance_types": offer.instance_type,
    }
    if selected.get("provider") not in (None, offer.provider):
        return False
    if offer.usd_per_hour > selected.get("max_usd_per_hour", float("inf")):
        return False
    return all(value in selected[name] for name, value in fields.items() if name in selected)


def print_diff(changes: Sequence[PriceChange], limit: int, console: Console) -> None:
    """Print price changes, then the numbers of new and removed offers."""
    moved = [found for found in changes if found.relative is not None]
    came = sum(found.before is None for found in changes)
    went = sum(found.after is None for found in changes)
    if moved:
        numbers = ("before", "after", "move")
        table = plain_table("zone", "instance type", "devices", "market", *numbers, numbers=numbers)
        shown = _first(moved, limit)
        for found in shown:
            assert found.before is not None
            assert found.after is not None
            table.add_row(
                found.offer.zone,
                found.offer.instance_type,
                devices(found.offer),
                found.offer.market.value,
                usd(found.before.usd_per_hour),
                usd(found.after.usd_per_hour),
                change(found.relative or 0.0),
            )
        print_report(table, console)
        _print_rest(moved, shown, console)
    console.print(f"{len(moved)} prices moved, {came} offers are new, {went} are gone")


def diff_json(changes: Sequence[PriceChange]) -> str:
    return as_json(
        [
            {
                "id": found.offer.id,
                "relative": found.relative,
                "before": None if found.before is None else asdict(found.before),
                "after": None if found.after is None else asdict(found.after),
            }
            for found in changes
        ]
    )


def print_history(points: Sequence[PricePoint], limit: int, console: Console) -> None:
    """Print prices by series and day; if there are too many, the newest ones."""
    if not points:
        console.print("no price meets these conditions")
        return
    table = plain_table("place", "devices", "market", "day", "USD/h", "move", "source", numbers=("USD/h", "move"))
    newest = points if not limit else sorted(points, key=lambda point: point.day)[-limit:]
    kept = frozenset(newest)
    before: PricePoint | None = None
    for point in points:
        same = before is not None and (before.region, before.zone, before.market) == (
            point.region,
            point.zone,
            point.market,
        )
        if point in kept:
            count = "" if point.accelerator_count is None else f"{point.accelerator_count}x"
            table.add_row(
                point.zone or point.region,
                f"{count}{point.accelerator}" if point.accelerator else "machine alone",
                point.market.value,
                point.day.isoformat(),
                usd(point.usd_per_hour),
                change(point.usd_per_hour / before.usd_per_hour - 1) if same and before is not None else "",
                point.source,
            )
        before = point
    print_report(table, console)
    if len(kept) < len(points):
        console.print(f"{len(points) - len(kept)} older prices; narrow down or give --limit 0")


def history_json(points: Sequence[PricePoint]) -> str:
    return as_json([asdict(point) for point in points])


def print_refreshed(result: Refreshed, console: Console) -> None:
    """Print the result of a refresh, and what it lacks."""
    table = plain_table("what", "count", numbers=("count",))
    for provider, count in sorted(result.offers.items()):
        table.add_row(f"{provider} prices read", str(count))
    for reason, count in sorted(result.refused.items()):
        table.add_row(f"refused: {reason}", str(count))
    if result.withdrawn:
        table.add_row("offers that their zone no longer lists", str(result.withdrawn))
    print_report(table, console)
    for provider, why in sorted(result.skipped.items()):
        console.print(f"skipped {provider}: {why}", soft_wrap=True)
    for fault in result.missing:
        console.print(f"[red]missing[/] {fault}", soft_wrap=True)
    if result.folder is None:
        console.print("nothing was read; prices stay as they were")
    else:
        console.print(f"written to {result.folder}", soft_wrap=True)


def refreshed_json(result: Refreshed) -> str:
    return as_json(asdict(result) | {"complete": result.complete})


def _age(row: Listed) -> str:
    if row.offer.as_of_from == UNKNOWN_DAY:
        return "unknown"
    # With --as-of a day before the price's own.
    return "later" if row.age_days < 0 else str(row.age_days)


def _first(rows: Sequence[Any], limit: int) -> Sequence[Any]:
    return rows[:limit] if limit else rows


def _print_rest(rows: Sequence[Any], shown: Sequence[Any], console: Console) -> None:
    if len(shown) < len(rows):
        console.print(f"{len(rows) - len(shown)} more; narrow down or give --limit 0")
