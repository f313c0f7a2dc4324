"""Reads the CSV files of a pricing folder as rows of text, and text as values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from functools import cache
from operator import itemgetter
from pathlib import Path
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints

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
# Defaults for files that were written before these columns existed.
OFFER_DEFAULTS = {"zone_confidence": "unchecked", "outlier": "no"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of figures; offers and prices refer to it by `id`."""

    id: str
    citation: str
    licence: str


def raw_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header of a CSV file and its rows, empty lines as empty rows.

    Raises DataError if the file is missing or not CSV.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file, strict=True)
            return next(rows, []), list(rows)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; give a folder with the data files or reinstall sailor-cloud") from error
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as CSV: {error}") from error


def constants(path: Path, kind: type[T], what: str) -> T:
    """Return a dataclass of numbers from a table of names and values, called `what` in errors. Raises DataError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = {row["name"]: float(row["value"]) for row in csv.DictReader(file)}
        return kind(**{field.name: found[field.name] for field in fields(kind)})  # type: ignore[arg-type]
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not a table of {what}: {error!r}") from error


def read_rows(path: Path, columns: Sequence[str], defaults: Mapping[str, str] = {}) -> Iterator[tuple[str, ...]]:
    """Yield some columns of a CSV file, row by row. Columns with a default may be missing from the file.

    Raises DataError if the file is missing, not CSV, or lacks another column.
    """
    header, rows = raw_rows(path)
    lines = [row for row in rows if row]
    missing = [column for column in columns if column not in header and column not in defaults]
    if missing:
        raise DataError(f"{path} lacks the columns {', '.join(missing)}")
    if set(map(len, lines)) - {len(header)}:
        number, row = next((number, row) for number, row in enumerate(lines, start=2) if len(row) != len(header))
        raise DataError(f"{path} can't be read as CSV: line {number} has {len(row)} fields, not {len(header)}")
    if header == list(columns):
        return map(tuple, lines)
    absent = [column for column in columns if column not in header]
    filled = [defaults[column] for column in absent]
    pick = itemgetter(*((header + absent).index(column) for column in columns))
    return (pick(row + filled) for row in lines) if absent else map(pick, lines)


def records(
    path: Path, columns: Sequence[str], build: Callable[..., T], defaults: Mapping[str, str] = {}
) -> Iterator[T]:
    """Yield `build(*values)` for every row of a CSV file; for a value that does not parse, DataError names its line.

    Raises DataError as `read_rows` does.
    """
    for line, values in enumerate(read_rows(path, columns, defaults), start=2):
        try:
            yield build(*values)
        except (ValueError, KeyError) as error:
            raise DataError(f"{path} line {line}: {error}") from error


class RowParser(Generic[T]):
    """Builds a dataclass from a row of text: each field by its type, or by its function in `read`.

    columns: the field's name for each, unless `named` has another.
    """

    def __init__(self, kind: type[T], named: Mapping[str, str] = {}, **read: Callable[[str], Any]) -> None:
        self._kind = kind
        types = {name: _reader(hint) for name, hint in get_type_hints(kind).items() if name not in read}
        self._read = [(field.name, (types | read)[field.name]) for field in fields(kind)]  # type: ignore[arg-type]
        self.columns = tuple(named.get(name, name) for name, _ in self._read)

    def __call__(self, *values: str) -> T:
        return self._kind(**{name: read(value) for (name, read), value in zip(self._read, values, strict=True)})

    def of(self, row: Mapping[str, str]) -> T:
        """Return the object of a row, values by column. Raises KeyError for a missing column."""
        return self(*(row[column] for column in self.columns))

    def all(self, path: Path, defaults: Mapping[str, str] = {}) -> Iterator[T]:
        """Yield one for every row of a CSV file. Raises DataError as `records` does."""
        return records(path, self.columns, self, defaults)


def _reader(hint: Any) -> Callable[[str], Any]:
    """Return a parser for values of a type; an empty value is None if the type allows it."""
    inner = [each for each in get_args(hint) if each is not NoneType]
    if len(inner) < len(get_args(hint)):
        read = _reader(inner[0])
        return lambda text: read(text) if text else None
    readers: dict[Any, Callable[[str], Any]] = {bool: parse_flag, date: parse_date}
    found: Callable[[str], Any] = readers.get(hint, hint)
    return found


def optional(text: str) -> float | None:
    return float(text) if text else None


@cache
def parse_date(text: str) -> date:
    return date.fromisoformat(text)


def parse_flag(text: str) -> bool:
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
