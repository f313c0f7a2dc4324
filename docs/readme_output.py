"""Keeps the output in README.md real: `python docs/readme_output.py` runs its commands and writes what they print.

A block is shown under a comment that names its command: `<!-- output of: COMMAND -->`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
WIDTH = "110"

_BLOCK = re.compile(r"<!-- output of: (?P<command>[^\n]+?) -->\n```\w*\n(?P<output>.*?)```", re.DOTALL)
_RUN_ID = re.compile(r"\b[a-z0-9-]+-\d{8}-\d{6}-[0-9a-f]{4}\b")
_PATH = re.compile(r"(?<= in )[/~]\S+")
_HASH = re.compile(r"\b[0-9a-f]{12}\b")
_DURATION = re.compile(r"(?:[+-]?# (?:d|h|min|s)\b ?)+")
_SPACES = re.compile(r"\s+")
# Lines that depend on how fast or how large the machine is.
_MACHINE = re.compile(r": (?:create|delete) running$")
_CORES = re.compile(r"^machine +(\d+) cores?\b", re.MULTILINE)
_SLOW_LINKS = "; links far below the plan"
_NUMBER = re.compile(r"[+-]?(?<![\w#])\d[\d.,]*(?:e[+-]?\d+)?")


def blocks(readme: str) -> dict[str, str]:
    """Return the commands that a README shows and the output it gives for each."""
    return {found["command"]: found["output"] for found in _BLOCK.finditer(readme)}


def output_of(command: str) -> str:
    """Return what a command prints on stdout and stderr, in a terminal of fixed width without colour."""
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"}
    environment.pop("SAILOR_CLOUD_MACHINE", None)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with tempfile.TemporaryDirectory() as home:
        environment["SAILOR_CLOUD_HOME"] = home
        done = subprocess.run(
            shlex.split(command),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=True,
        )
        shown = done.stdout.replace(home, "~/.local/state/sailor-cloud")
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())


def cores(output: str) -> int:
    """Return how many cores a plan for local nodes was made for; the plan depends on them."""
    found = _CORES.search(output)
    assert found, f"no line says what the machine has:\n{output}"
    return int(found[1])


def skeleton(output: str) -> list[str]:
    """Return the lines of an output without what differs from run to run: numbers, times, names of runs, order."""
    lines = set()
    for line in output.splitlines():
        if _MACHINE.search(line):
            continue
        if line.startswith("step "):
            line = "step"
        line = line.partition(_SLOW_LINKS)[0]
        line = _HASH.sub("#", _PATH.sub("PATH", _RUN_ID.sub("RUN", line)))
        line = _SPACES.sub(" ", _NUMBER.sub("#", line)).strip()
        line = _DURATION.sub("TIME ", line).strip()
        if line:
            lines.add(line)
    return sorted(lines)


def main() -> None:
    """Write the current output of every command into the README."""
    text = README.read_text(encoding="utf-8")

    def fresh(found: re.Match[str]) -> str:
        command = found["command"]
        return f"<!-- output of: {command} -->\n```\n{output_of(command)}```"

    README.write_text(_BLOCK.sub(fresh, text), encoding="utf-8")


if __name__ == "__main__":
    main()
