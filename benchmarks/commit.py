"""Which commit a benchmark measures, on what machine, and where its results go."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CHANGED = "-dirty"


def commit() -> str:
    """Return the commit of the checkout, marked where files have changed since, but for results."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return _git("rev-parse", "--short", "HEAD") + (_CHANGED if changed else "")


def same_files(measured: str, now: str) -> bool:
    """Return whether what one run measured holds for another: not if files had changed."""
    return measured == now and not now.endswith(_CHANGED)


def measured_on() -> str:
    """Return one line with the machine, the day, the commit and the command."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}"
    command = " ".join(["python", *sys.argv])
    return f"Machine: {machine}, {datetime.now(UTC).date().isoformat()}. Commit: {commit()}. Command: `{command}`.\n"


def write(text: str, output: Path | None) -> None:
    """Write results to a file, or to stdout."""
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if arguments[0] == "rev-parse" else "")
