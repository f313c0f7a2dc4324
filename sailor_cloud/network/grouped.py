"""Rows of data files by key, which become objects on first use, since most are never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Generic, TypeVar

from sailor_cloud.catalog.files.tables import raw_rows
from sailor_cloud.errors import DataError

T = TypeVar("T")

Row = dict[str, str]
Key = tuple[str, ...]


class Grouped(Mapping[Key, list[T]], Generic[T]):
    """Rows of files by key; the files are read at the first access, since a job in one region needs none of them.

    `key_of` gets the values of `columns`. Access raises DataError, with the line, if a key or its rows do not parse.
    """

    def __init__(
        self, paths: Sequence[Path], columns: Sequence[str], key_of: Callable[..., Key], build: Callable[[Row], T]
    ) -> None:
        self._paths, self._columns, self._key_of, self._build = paths, columns, key_of, build
        self._built: dict[Key, list[T]] = {}

    def __getitem__(self, key: Key) -> list[T]:
        if key not in self._built:
            self._built[key] = [
                parsed(path, line, dict(zip(header, values, strict=False)), self._build)
                for path, line, header, values in self._lines[key]
            ]
        return self._built[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    @cached_property
    def _lines(self) -> dict[Key, list[tuple[Path, int, list[str], list[str]]]]:
        """The lines of all files by key: path, number, header and values."""
        found: dict[Key, list[tuple[Path, int, list[str], list[str]]]] = {}
        for path in self._paths:
            header, rows = raw_rows(path)
            places = {column: place for place, column in enumerate(header)}
            pick = itemgetter(*(places.get(column, len(header)) for column in self._columns))
            for line, values in enumerate(rows, start=2):
                if not values:
                    continue
                try:
                    key = self._key_of(*pick(values))
                except IndexError:
                    key = parsed(path, line, dict(zip(header, values, strict=False)), self._key_of_row)
                found.setdefault(key, []).append((path, line, header, values))
        return found

    def _key_of_row(self, row: Row) -> Key:
        return self._key_of(*(row[column] for column in self._columns))


def parsed(path: Path, line: int, row: Row, build: Callable[[Row], T]) -> T:
    """Return the object of a row. Raises DataError with file and line if it does not parse."""
    try:
        return build(row)
    except KeyError as error:
        raise DataError(f"{path} line {line}: no column or no such name: {error}") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} line {line}: {error}") from error
