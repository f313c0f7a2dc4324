"""Rows of data files by key, which become objects on first use, since most are never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from sailor_cloud.errors import DataError

T = TypeVar("T")

Row = dict[str, str]
Key = tuple[str, ...]


@dataclass(slots=True)
class Grouped(Mapping[Key, list[T]], Generic[T]):
    """Rows of files by key. Access raises DataError, with the line, if one does not parse."""

    build: Callable[[Row], T]
    _lines: dict[Key, list[tuple[Path, int, Row]]] = field(default_factory=dict)
    _built: dict[Key, list[T]] = field(default_factory=dict)

    def add(self, key: Key, path: Path, line: int, row: Row) -> None:
        """Add a line of a file."""
        self._lines.setdefault(key, []).append((path, line, row))

    def __getitem__(self, key: Key) -> list[T]:
        if key not in self._built:
            self._built[key] = [parsed(*line, self.build) for line in self._lines[key]]
        return self._built[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def parsed(path: Path, line: int, row: Row, build: Callable[[Row], T]) -> T:
    """Return the object of a row. Raises DataError with file and line if it does not parse."""
    try:
        return build(row)
    except KeyError as error:
        raise DataError(f"{path} line {line}: no column or no such name: {error}") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} line {line}: {error}") from error
