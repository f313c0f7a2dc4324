"""What a device type and its software add to layers and tensors: at most three fitted constants each."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from sailor_cloud.errors import DataError

FILE = "stacks.csv"
DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Constants of one accelerator under one software stack.

    `framework_bytes`: memory of context, libraries and communication. `transfer_slowdown`: how many times longer a
    transfer between nodes takes in training than in a link test. `timing_overhead_s`: how much longer a layer's forward
    and backward take when timed alone than in training. `usable_fraction`: share of the nominal memory that a program
    can have.
    """

    accelerator: str
    stack: str
    framework_bytes: int
    transfer_slowdown: float
    timing_overhead_s: float
    usable_fraction: float
    source: str
    as_of: date


def read_stacks(path: Path) -> dict[str, Stack]:
    """Read the table by accelerator; its row `default` serves those without one of their own. Raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [_row(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a table of software stacks: {error!r}") from error
    table = {row.accelerator: row for row in rows}
    if DEFAULT not in table:
        raise DataError(f"{path} lacks the row {DEFAULT!r}")
    return table


def _row(row: dict[str, str]) -> Stack:
    return Stack(
        accelerator=row["accelerator"],
        stack=row["stack"],
        framework_bytes=int(row["framework_bytes"]),
        transfer_slowdown=float(row["transfer_slowdown"]),
        timing_overhead_s=float(row["timing_overhead_s"]),
        usable_fraction=float(row["usable_fraction"]),
        source=row["source"],
        as_of=date.fromisoformat(row["as_of"]),
    )
