"""A receipt for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.errors import printable
from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table, print_report
from sailor_cloud.run.receipt import Comparison, Receipt
from sailor_cloud.units import counted


def print_receipt(receipt: Receipt, console: Console) -> None:
    print_report(receipt_report(receipt), console)


def receipt_report(receipt: Receipt) -> RenderableType:
    """Return the resources with their times, the money, and every estimate next to its actual value."""
    parts: list[RenderableType] = [
        Text(f"Receipt of {receipt.run_id} ({receipt.outcome})", style="bold"),
        Padding(_resources(receipt), (1, 0)) if receipt.resources or receipt.kept else Text(""),
        *_asked(receipt),
        _spending(receipt),
        Padding(_comparisons(receipt), (1, 0)),
        _verdict(receipt),
    ]
    parts.extend(Text(printable(f"problem on the way: {problem}"), style="yellow") for problem in receipt.problems)
    return Group(*parts)


def _resources(receipt: Receipt) -> Table:
    table = plain_table("resource", "zone", "created", "gone", "confirmed by")
    for row in receipt.resources:
        gone = _clock_time(row.gone_at) if row.gone_at else "STILL THERE" if row.found else "NOT CONFIRMED"
        cells = (f"{row.type} {row.name}", row.zone, _clock_time(row.created_at), gone, row.confirmed_by)
        # Journals may be damaged, and clouds choose names.
        table.add_row(*map(printable, cells))
    for kept in receipt.kept:
        state, how = f"kept, {text.usd(kept.usd_per_month)} USD/month", kept.delete_command
        if kept.ends_at is not None:
            state, how = f"paid for until {kept.ends_at:%Y-%m-%d %H:%M}", "can't be cancelled, ends by itself"
        table.add_row(f"{kept.type} {kept.name}", "", "", state, how)
    return table


def _asked(receipt: Receipt) -> Iterator[Text]:
    """Yield for each place when it was asked, for which kinds, and its missing answers."""
    kinds_of: dict[tuple[str, datetime | None, str], dict[str, None]] = {}
    for asked in receipt.asked:
        kinds_of.setdefault((asked.place, asked.asked_at, asked.problem), {})[asked.kind] = None
    for (place, at, problem), kinds in kinds_of.items():
        if at is None:
            yield Text(printable(f"not asked: {problem}"), style="yellow")
            continue
        reply = f"no answer: {problem}" if problem else "answered"
        color = "yellow" if problem else ""
        yield Text(printable(f"{place} was asked at {_clock_time(at)} for {', '.join(kinds)}: {reply}"), style=color)


def _clock_time(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def _spending(receipt: Receipt) -> Table:
    numbers = ("quantity", "USD each", "USD")
    table = plain_table("spent on", *numbers, numbers=numbers)
    for line in receipt.lines:
        table.add_row(
            line.what, f"{text.amount(line.quantity)} {line.unit}", text.usd(line.usd_per_unit), text.usd(line.usd)
        )
    budget = f"of {text.usd(receipt.budget_usd)} USD budget" if receipt.budget_usd else "no budget"
    table.add_row("total", budget, "", text.usd(receipt.spent_usd), style="bold")
    return table


def _comparisons(receipt: Receipt) -> Table:
    numbers = ("estimate", "actual", "difference")
    table = plain_table("estimate against actual", *numbers, numbers=numbers)
    for row in receipt.comparisons:
        table.add_row(row.what, _amount(row, row.estimate), _amount(row, row.actual), _difference(row))
    return table


def _amount(row: Comparison, value: float | None) -> str:
    if value is None:
        return "-"
    return text.seconds(value) if row.unit == "s" else f"{text.usd(value)} {row.unit}"


def _difference(row: Comparison) -> str:
    if row.estimate is None or row.actual is None or row.estimate == 0:
        return "-"
    return f"{100 * (row.actual / row.estimate - 1):+.0f} %"


def _all_gone(count: int) -> str:
    return "the only resource is gone" if count == 1 else f"all {count} resources are gone"


def _verdict(receipt: Receipt) -> Text:
    again = f"run 'sailor-cloud down {receipt.run_id}'"
    if found := [row.name for row in receipt.left if row.found]:
        verdict = printable(f"{counted(len(found), 'resource')} still there: {', '.join(found)}; {again}")
        return Text(verdict, style="bold red")
    unsure = [row.name for row in receipt.left]
    unsure += dict.fromkeys(place.place or "unknown places" for place in receipt.unanswered)
    if unsure:
        unknown = any(place.asked_at is None for place in receipt.unanswered)
        when = (
            "with --project or --region, or delete its folder if it bought nothing" if unknown else "once they answer"
        )
        verdict = printable(f"not confirmed as gone: {', '.join(unsure)}; {again} again {when}")
        return Text(verdict, style="bold red")
    if not receipt.resources and not receipt.kept:
        made = receipt.lines or receipt.problems
        nothing = (
            "an independent sweep has found nothing" if made else "nothing was made, so there was nothing to remove"
        )
        return Text(nothing, style="green")
    bought = sum(row.ends_at is not None for row in receipt.kept)
    stays = [f"{count} kept on purpose"] if (count := len(receipt.kept) - bought) else []
    stays += [f"{bought} paid for until {'its end' if bought == 1 else 'their ends'}"] if bought else []
    if not receipt.resources:
        return Text(f"{'; '.join(stays)}; an independent sweep has found nothing else", style="green")
    gone = f"{_all_gone(len(receipt.resources))}, confirmed by an independent sweep"
    return Text("; ".join([gone, *stays]), style="green")
