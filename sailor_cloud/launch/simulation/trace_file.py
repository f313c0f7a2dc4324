"""Reads availability traces: one row per moment, one column per accelerator and zone."""

from __future__ import annotations

import csv
import math
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.launch.simulation.market import Place, Trace

_TIME_COLUMNS = ("at_s", "Timestamp", "timestamp", "time")
# `A100-40_us-central1-a`, as the Sailor artifact writes it, or `A100-40@us-central1-a`.
_COLUMN = re.compile(r"(?P<accelerator>[A-Za-z0-9.-]+?)[_@](?P<zone>[a-z0-9-]+)")


def read_trace(path: Path) -> Trace:
    """Return the trace of a CSV file; times are seconds, Unix times or ISO 8601, and begin at 0 in the result.

    Unnamed columns are row numbers and ignored. Raises RequestError with every fault and its line.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(line for line in file if not line.startswith("#")) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"can't read trace {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(rows) < 2:
        raise RequestError(f"trace {path} needs a header and at least one row")
    header, problems = rows[0], list[Problem]()
    time_column = next((header.index(name) for name in _TIME_COLUMNS if name in header), None)
    if time_column is None:
        raise RequestError(f"trace {path} has no column of times; one of {', '.join(_TIME_COLUMNS)} is needed")
    places = {}
    for index, name in enumerate(header):
        if name and index != time_column:
            match = _COLUMN.fullmatch(name)
            if match is None:
                hint = "columns are called ACCELERATOR_ZONE, such as A100-40_us-central1-a"
                problems.append(Problem(path=f"{path}: header", message=f"column {name!r} names no place", hint=hint))
            else:
                places[index] = Place(match["zone"], match["accelerator"])
    times, counts = _values(path, rows, time_column, places, problems)
    if problems:
        raise RequestError(problems)
    return Trace(
        times_s=tuple(moment - times[0] for moment in times),
        devices={place: tuple(row[index] for row in counts) for index, place in places.items()},
    )


def _values(
    path: Path, rows: list[list[str]], time_column: int, places: dict[int, Place], problems: list[Problem]
) -> tuple[list[float], list[dict[int, int]]]:
    times: list[float] = []
    counts: list[dict[int, int]] = []
    for number, row in enumerate(rows[1:], start=1):
        where = f"{path}: row {number}"
        try:
            if len(row) != len(rows[0]):
                raise ValueError(f"has {len(row)} values, the header has {len(rows[0])} columns")
            moment = _seconds(row[time_column])
            counts.append({index: _count(row[index]) for index in places})
        except ValueError as error:
            problems.append(Problem(path=where, message=str(error)))
            continue
        if times and moment <= times[-1]:
            problems.append(Problem(path=where, message=f"its time is not later than that of the row before: {moment}"))
        times.append(moment)
    return times, counts


def _seconds(text: str) -> float:
    for read in (float, lambda text: datetime.fromisoformat(text).timestamp()):
        with suppress(ValueError):
            if math.isfinite(moment := read(text)):
                return moment
    raise ValueError(f"{text!r} is neither a number of seconds nor an ISO 8601 time")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (number := float(text)) >= 0 and number.is_integer():
            return int(number)
    raise ValueError(f"{text!r} is not a number of devices")
