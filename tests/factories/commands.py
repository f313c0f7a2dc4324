"""Runs the command line as its users do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("sailor-cloud")


def sailor(
    *arguments: str,
    home: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    answers: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run sailor-cloud with a clean environment; `answers` is what stdin holds."""
    clean = {"PATH": "/usr/bin:/bin", "SAILOR_CLOUD_HOME": str(home or "/nonexistent"), **(environment or {})}
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=clean,
        cwd=cwd,
        input=answers,
        capture_output=True,
        text=True,
        timeout=280,
    )
