"""The runs of the past, one row each, in a small SQLite file beside the run folders."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from datetime import datetime
from pathlib import Path

from sailor_cloud.run.folder import RunFolder, private_dir

FILE = "history.sqlite"
_BUSY_S = 10.0
_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, job TEXT NOT NULL, outcome TEXT NOT NULL, started_at TEXT NOT NULL, ended_at TEXT NOT NULL,
    steps INTEGER NOT NULL, steps_planned INTEGER, generations INTEGER NOT NULL, nodes INTEGER NOT NULL,
    planned_iteration_s REAL, measured_iteration_s REAL, planned_usd REAL, spent_usd REAL NOT NULL, budget_usd REAL,
    clean INTEGER NOT NULL)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """A run that was torn down; `clean`: everything it had bought is confirmed gone."""

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


def remember(folder: RunFolder, run: PastRun) -> None:
    """Write down a run that has ended; written again, it replaces what was there."""
    with closing(_open(_file(folder.path.parent))) as database, database:
        marks = ", ".join("?" for _ in fields(PastRun))
        row = tuple(value.isoformat() if isinstance(value, datetime) else value for value in astuple(run))
        database.execute(f"INSERT OR REPLACE INTO runs VALUES ({marks})", row)


def past_runs(runs_root: Path, *, job: str | None = None) -> tuple[PastRun, ...]:
    """Return the runs of a folder of runs, oldest first."""
    path = _file(runs_root)
    if not path.is_file():
        return ()
    names = [field.name for field in fields(PastRun)]
    with closing(_open(path)) as database:
        rows = database.execute(
            f"SELECT {', '.join(names)} FROM runs WHERE ? IS NULL OR job = ? ORDER BY started_at, run_id", (job, job)
        ).fetchall()
    return tuple(_past_run(dict(zip(names, row, strict=True))) for row in rows)


def _file(runs_root: Path) -> Path:
    return runs_root.parent / FILE


def _open(path: Path) -> sqlite3.Connection:
    private_dir(path.parent)
    if not path.exists():
        # SQLite would make it readable for others, and gives its journal files the same mode.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, timeout=_BUSY_S)
    database.execute(_TABLE)
    return database


def _past_run(row: dict[str, object]) -> PastRun:
    times = {name: datetime.fromisoformat(str(row[name])) for name in ("started_at", "ended_at")}
    return PastRun(**{**row, **times, "clean": bool(row["clean"])})  # type: ignore[arg-type]
