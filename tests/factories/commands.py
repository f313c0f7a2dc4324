"""Runs the command line as its users do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(sys.executable).with_name("sailor-cloud")


def clean_environment(home: Path | None, environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a command sees: little but its home, what the test adds, and the machine that all tests plan for."""
    machine = {name: value for name, value in os.environ.items() if name == "SAILOR_CLOUD_MACHINE"}
    return {
        "PATH": "/usr/bin:/bin",
        "SAILOR_CLOUD_HOME": str(home or "/nonexistent"),
        **machine,
        **(environment or {}),
    }


def sailor(
    *arguments: str,
    home: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    answers: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run sailor-cloud with a clean environment; `answers` is what stdin holds."""
    return subprocess.run(
        [str(COMMAND), *arguments],
        env=clean_environment(home, environment),
        cwd=cwd,
        input=answers,
        capture_output=True,
        text=True,
        timeout=280,
    )
