"""Policies of a replay side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table
from sailor_cloud.run.replayed import Replayed


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
