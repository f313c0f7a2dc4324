"""Reads the CSV files of a pricing folder as rows of text, and text into values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

from sailor_cloud.errors import DataError

T = TypeVar("T")

OFFER_COLUMNS = (
    "provider",
    "region",
    "zone",
    "instance_type",
    "accelerator",
    "accelerator_count",
    "vcpus",
    "memory_gib",
    "market",
    "usd_per_hour",
    "as_of_from",
    "as_of_to",
    "source",
    "confidence",
    "zone_confidence",
    "outlier",
)
# What an offer has whose file was written before there were these columns.
OFFER_DEFAULTS = {"zone_confidence": "unchecked", "outlier": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where figures come from; offers and prices name it by `id`."""

    id: str
    citation: str
    licence: str


def read_rows(path: Path, columns: Sequence[str], defaults: Mapping[str, str] = {}) -> Iterator[tuple[str, ...]]:
    """Return some columns of a CSV file, row by row. A column with a default may be missing from the file.

    Raises DataError if the file is missing, no CSV, or lacks another column.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, strict=True)
            header = next(rows, [])
            lines = [row for row in rows if row]
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; give a folder with the data files or reinstall sailor-cloud") from error
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as CSV: {error}") from error
    missing = [column for column in columns if column not in header and column not in defaults]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}")
    for number, row in enumerate(lines, start=2):
        if len(row) != len(header):
            raise DataError(f"{path} can't be read as CSV: line {number} has {len(row)} fields, not {len(header)}")
    absent = [column for column in columns if column not in header]
    filled = [defaults[column] for column in absent]
    pick = itemgetter(*((header + absent).index(column) for column in columns))
    return (pick(row + filled) for row in lines) if absent else map(pick, lines)


def records(
    path: Path, columns: Sequence[str], build: Callable[..., T], defaults: Mapping[str, str] = {}
) -> Iterator[T]:
    """Yield `build(*values)` for every row of a CSV file; a value that does not parse raises DataError with its line.

    Raises DataError as `read_rows` does.
    """
    for line, values in enumerate(read_rows(path, columns, defaults), start=2):
        try:
            yield build(*values)
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} line {line}: {error}") from error


def optional(text: str) -> float | None:
    return float(text) if text else None


@cache
def parse_date(text: str) -> date:
    return date.fromisoformat(text)


def yes_or_no(text: str) -> bool:
    """Return a flag. Raises ValueError."""
    if text not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text == "yes"


def price(text: str) -> float:
    """Return a price that is a positive, finite number. Raises ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a positive price")
    return value
