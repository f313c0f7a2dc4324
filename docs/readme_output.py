"""Keeps output in the documentation real: `python docs/readme_output.py` runs commands and writes what they print.

docs/demo.md shows whole outputs, each under a comment that names its command: `<!-- output of: COMMAND -->`. The
tutorial, docs/index.md, shows the last tables of one under `<!-- end of: COMMAND -->`.
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
TUTORIAL = ROOT / "docs" / "index.md"
PAGE = ROOT / "docs" / "demo.md"
WIDTH = "110"

_BLOCK = re.compile(r"<!-- output of: (?P<command>[^\n]+?) -->\n```\w*\n(?P<output>.*?)```", re.DOTALL)
_END = re.compile(r"<!-- end of: (?P<command>[^\n]+?) -->\n```\n(?P<output>.*?)```", re.DOTALL)
_LAST_TABLE = "estimate against actual"
_RUN_ID = re.compile(r"\b[a-z0-9-]+-\d{8}-\d{6}-[0-9a-f]{4}\b")
_PATH = re.compile(r"(?<= in )[/~]\S+")
_HASH = re.compile(r"\b[0-9a-f]{12}\b")
_DURATION = re.compile(r"(?:[+-]?# (?:d|h|min|s)\b ?)+")
_SPACES = re.compile(r"\s+")
# Lines that depend on how fast or how large the machine is.
_MACHINE = re.compile(r": (?:create|delete) running$")
_CORES = re.compile(r"^machine +(\d+) cores?\b", re.MULTILINE)
_WRAPPED = re.compile(r"\n {13}(?=\S)")
_SLOW_LINKS = "; links far below the plan"
_NUMBER = re.compile(r"[+-]?(?<![\w#])\d[\d.,]*(?:e[+-]?\d+)?")


def blocks(page: str) -> dict[str, str]:
    """Return the commands that a page shows and the output it gives for each."""
    return {found["command"]: found["output"] for found in _BLOCK.finditer(page)}


def ends(page: str) -> dict[str, str]:
    """Return the commands whose last lines a page shows, and these lines."""
    return {found["command"]: found["output"] for found in _END.finditer(page)}


def end_of(output: str) -> str:
    """Return an output from its last table on."""
    return output[output.index(_LAST_TABLE) :]


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
    """Return the lines of an output without what differs from run to run: numbers, times, names of runs, order.

    The decision before the goal depends on how fast the machine is: which choices coincide, and what is as fast. A fact
    may wrap on a slow machine, whose times have more digits.
    """
    lines = set()
    _, goal, rest = _WRAPPED.sub(" ", output).partition("\ngoal ")
    for line in (goal.lstrip() + rest if goal else output).splitlines():
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
    """Write the current output of every command into the pages."""
    text = PAGE.read_text(encoding="utf-8")

    def fresh(found: re.Match[str]) -> str:
        command = found["command"]
        return f"<!-- output of: {command} -->\n```\n{output_of(command)}```"

    text = _BLOCK.sub(fresh, text)
    PAGE.write_text(text, encoding="utf-8")
    shown = blocks(text)

    def last(found: re.Match[str]) -> str:
        command = found["command"]
        return f"<!-- end of: {command} -->\n```\n{end_of(shown[command])}```"

    TUTORIAL.write_text(_END.sub(last, TUTORIAL.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
