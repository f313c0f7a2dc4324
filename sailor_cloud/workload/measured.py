"""The long table of measured layer times, one row per layer kind and configuration."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.catalog.files.tables import RowParser
from sailor_cloud.errors import DataError
from sailor_cloud.workload.features import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """Seconds of one layer of one microbatch on one of `tp` devices; `activation_bytes` per microbatch and device."""

    model: str
    layer_kind: LayerKind
    microbatch_size: int
    sequence_length: int
    tp: int
    forward_s: float
    backward_s: float
    update_s: float
    activation_bytes: int | None

    @property
    def key(self) -> tuple[str, LayerKind, int, int, int]:
        return (self.model, self.layer_kind, self.microbatch_size, self.sequence_length, self.tp)


_ROW = RowParser(MeasuredLayer)
COLUMNS = _ROW.columns


def read_measured(path: Path) -> tuple[MeasuredLayer, ...]:
    """Read a table of measured layers. Raises DataError with file and line."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise DataError(f"{path}: columns must be {', '.join(COLUMNS)}; they are {reader.fieldnames}")
        rows = []
        for row in reader:
            try:
                rows.append(_ROW.of(row))
            except (ValueError, TypeError) as error:
                raise DataError(f"{path} line {reader.line_num}: {error}") from error
    return tuple(rows)


def write_measured(path: Path, rows: Iterable[MeasuredLayer]) -> None:
    """Write a table of measured layers, sorted by key."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in sorted(rows, key=lambda row: row.key):
            kept = "" if row.activation_bytes is None else row.activation_bytes
            seconds = [f"{value:.9g}" for value in (row.forward_s, row.backward_s, row.update_s)]
            writer.writerow([*row.key, *seconds, kept])
