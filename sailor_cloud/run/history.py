"""Past runs, one row each, in a small SQLite file next to the run folders."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sailor_cloud.errors import RequestError
from sailor_cloud.run.folder import RunFolder, private_dir

FILE = "history.sqlite"
_BUSY_S = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, job TEXT NOT NULL, outcome TEXT NOT NULL, started_at TEXT NOT NULL, ended_at TEXT NOT NULL,
    steps INTEGER NOT NULL, steps_planned INTEGER, generations INTEGER NOT NULL, nodes INTEGER NOT NULL,
    planned_iteration_s REAL, measured_iteration_s REAL, planned_usd REAL, spent_usd REAL NOT NULL, budget_usd REAL,
    clean INTEGER NOT NULL, owner TEXT, project TEXT)
"""
# The types of a column's values, by the type of its field.
_STORED_AS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "datetime": (str,),
    "int": (int,),
    "bool": (int,),
    "float": (int, float),
}
# Columns that files of earlier versions lack.
_ADDED = ("owner", "project")


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run that was torn down; `clean`: all its purchases are confirmed as deleted."""

    run_id: str
    job: str
    outcome: str
    started_at: datetime
    ended_at: datetime
    steps: int
    steps_planned: int | None
    generations: int
    nodes: int
    planned_iteration_s: float | None
    measured_iteration_s: float | None
    planned_usd: float | None
    spent_usd: float
    budget_usd: float | None
    clean: bool
    owner: str | None = None
    project: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The cost of an owner's runs, or of those that began in a month."""

    name: str
    runs: int
    spent_usd: float
    not_clean: int


class GroupBy(StrEnum):
    OWNER = "owner"
    PROJECT = "project"
    MONTH = "month"


def sums(runs: Sequence[PastRun], by: GroupBy) -> tuple[Sum, ...]:
    """Return sums over runs, sorted by name; a run without an owner or project counts under "-"."""
    groups: dict[str, list[PastRun]] = {}
    for run in runs:
        name = f"{run.started_at:%Y-%m}" if by is GroupBy.MONTH else getattr(run, by.value) or "-"
        groups.setdefault(name, []).append(run)
    return tuple(
        Sum(
            name=name,
            runs=len(members),
            spent_usd=math.fsum(run.spent_usd for run in members),
            not_clean=sum(not run.clean for run in members),
        )
        for name, members in sorted(groups.items())
    )


def record_run(folder: RunFolder, run: PastRun) -> None:
    """Record a run that has ended, or what has changed since: only a run that was not clean has a new end.

    The first record of how far the run came is kept if its files have lost that.
    """
    with closing(_open(_file(folder.path.parent))) as database, database:
        known = _rows(database, "run_id = ?", run.run_id)
        if known and known[0].clean and run.clean:
            return
        if known and known[0].generations > run.generations:
            run = replace(known[0], ended_at=run.ended_at, spent_usd=run.spent_usd, clean=run.clean)
        marks = ", ".join("?" for _ in fields(PastRun))
        row = tuple(value.isoformat() if isinstance(value, datetime) else value for value in astuple(run))
        names = ", ".join(field.name for field in fields(PastRun))
        database.execute(f"INSERT OR REPLACE INTO runs ({names}) VALUES ({marks})", row)


def past_runs(runs_root: Path, *, job: str | None = None) -> tuple[PastRun, ...]:
    """Return the runs of a folder of runs, oldest first. Raises RequestError if the file can't be read."""
    return _read(_file(runs_root), "?1 IS NULL OR job = ?1", job)


def past_run(folder: RunFolder) -> PastRun | None:
    """Return what is recorded of a run; None if it has not ended. Raises RequestError if the file can't be read."""
    found = _read(_file(folder.path.parent), "run_id = ?", folder.run_id)
    return found[0] if found else None


def _read(path: Path, condition: str, value: str | None) -> tuple[PastRun, ...]:
    if not path.exists():
        return ()
    try:
        with closing(_open(path)) as database:
            return _rows(database, condition, value)
    except (sqlite3.Error, ValueError) as error:
        again = "move it away if it is damaged, and 'sailor-cloud down RUN' records a run again"
        raise RequestError(f"{path} can't be read: {error}; {again}") from error


def _rows(database: sqlite3.Connection, condition: str, value: str | None) -> tuple[PastRun, ...]:
    names = [field.name for field in fields(PastRun)]
    query = f"SELECT {', '.join(names)} FROM runs WHERE {condition} ORDER BY started_at, run_id"
    return tuple(_past_run(dict(zip(names, row, strict=True))) for row in database.execute(query, (value,)))


def _file(runs_root: Path) -> Path:
    return runs_root.parent / FILE


def _open(path: Path) -> sqlite3.Connection:
    private_dir(path.parent)
    if not path.exists():
        # SQLite would make the file readable for others; its journal files get the same mode.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, timeout=_BUSY_S)
    database.execute(_TABLE)
    known = {row[1] for row in database.execute("PRAGMA table_info(runs)")}
    for name in _ADDED:
        if name not in known:
            with contextlib.suppress(sqlite3.OperationalError):  # Another process has just added it.
                database.execute(f"ALTER TABLE runs ADD COLUMN {name} TEXT")
    return database


def _past_run(row: dict[str, object]) -> PastRun:
    """Return a row's run. Raises ValueError for values that no run has: SQLite keeps any value in any column."""
    for field in fields(PastRun):
        kind, _, optional = str(field.type).partition(" | ")
        value = row[field.name]
        if not (isinstance(value, _STORED_AS[kind]) or (optional and value is None)):
            raise ValueError(f"{field.name} of run {row['run_id']!r} is {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{field.name} of run {row['run_id']!r} is {value}")
    times = {name: datetime.fromisoformat(str(row[name])) for name in ("started_at", "ended_at")}
    for name, time in times.items():
        if time.tzinfo is None:
            raise ValueError(f"{name} of run {row['run_id']!r} has no time zone")
    return PastRun(**{**row, **times, "clean": bool(row["clean"])})  # type: ignore[arg-type]
