"""Which commit a benchmark measures."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """Return the commit of the checkout, marked where files have changed since, but for results."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or ("unknown" if arguments[0] == "rev-parse" else "")
