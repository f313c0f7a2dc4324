"""Reads the CSV files of a pricing folder into frames of text, and text into values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sailor_cloud.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where figures come from; offers and prices name it by `id`."""

    id: str
    citation: str
    licence: str


def read_frame(path: Path, columns: Sequence[str]) -> DataFrame:
    """Return a CSV file as a frame of text. Raises DataError if it is missing, no CSV, or lacks a column."""
    import pandas

    try:
        frame = pandas.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; give a folder with the data files or reinstall sailor-cloud") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read as CSV: {error}") from error
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}")
    return frame


def records(path: Path, frame: DataFrame, columns: Sequence[str], build: Callable[..., T]) -> Iterator[T]:
    """Yield `build(*values)` for every row; a value that does not parse raises DataError with file and line."""
    for line, values in enumerate(zip(*(frame[column].tolist() for column in columns), strict=True), start=2):
        try:
            yield build(*values)
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} line {line}: {error}") from error


def optional(text: str) -> float | None:
    return float(text) if text else None


@cache
def parse_date(text: str) -> date:
    return date.fromisoformat(text)


def price(text: str) -> float:
    """Return a price that is a positive, finite number. Raises ValueError."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} is not a positive price")
    return value
