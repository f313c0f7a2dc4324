"""Compares the policies of a replay."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table
from sailor_cloud.run.progress import Replayed, SpotReplayed


def replay_report(results: Sequence[Replayed]) -> RenderableType:
    """Return a table with a row per policy."""
    numbers = ("iterations", "done again", "generations", "preempted", "USD")
    table = plain_table("policy", "ending", "took", "without training", *numbers, numbers=numbers)
    for row in results:
        table.add_row(
            row.policy,
            row.ending,
            text.seconds(row.seconds),
            text.seconds(row.downtime_s),
            f"{row.steps:,}",
            f"{row.steps_again:,}",
            str(row.generations),
            str(row.preemptions),
            text.usd(row.usd),
        )
    messages = [Text(f"{row.policy}: {row.message}", style="yellow") for row in results if row.message]
    return Group(table, *messages)


def spot_replay_report(rows: Sequence[SpotReplayed], *, zones: Sequence[str]) -> RenderableType:
    """Return a table with a row per deadline and policy."""
    numbers = ("USD", "of on-demand", "missed", "preempted", "paid, not training")
    table = plain_table("deadline", "policy", *numbers, numbers=numbers)
    for row in rows:
        table.add_row(
            text.seconds(row.deadline_s),
            row.policy,
            text.usd(row.usd),
            text.share(row.share),
            f"{row.missed} of {row.starts}",
            "" if row.preemptions is None else f"{row.preemptions:.1f}",
            "" if row.lost_s is None else text.seconds(row.lost_s),
        )
    note = f"Means over the starts, on {', '.join(zones)}. The optimum knows the trace and pays the same change-overs."
    return Group(table, Text(note))
