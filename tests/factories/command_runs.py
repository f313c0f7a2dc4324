"""Runs of a user's command on this machine: the job is written, and `sailor-cloud up` carries it out."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from factories.runs import Up, read_lines
from factories.warm import COMMAND_LINE, warm


def command_job(home: Path, run: str, *, devices: int = 1, nodes: int = 2, **fields: Any) -> Path:
    """Write a job whose nodes are processes on this machine, two by default, and run `run`."""
    accelerators = {"CPU-fast": nodes * devices}
    resource = {"provider": "local", "zones": ["local-a"], "accelerators": accelerators}
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    job = {
        "name": "any",
        "run": run,
        "workdir": "work",
        "constraints": {"budget_usd": 5, "deadline": "30m"},
        "resources": [resource],
        **fields,
    }
    path = home / "job.yaml"
    path.write_text(json.dumps({name: value for name, value in job.items() if value is not None}))
    return path


def script(home: Path, text: str, name: str = "train.py") -> None:
    """Put a file into the working folder of the job."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    (home / "work" / name).write_text(textwrap.dedent(text))


def up(home: Path, job: Path, *options: str, **environment: str) -> Up:
    process = subprocess.Popen(
        [*warm(COMMAND_LINE), "up", str(job), "--yes", *options],
        env={**os.environ, "SAILOR_CLOUD_HOME": str(home), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Up(process, home)


def steps(folder: Path) -> list[int]:
    return [event["step"] for event in read_lines(folder / "logs" / "events.jsonl") if event["event"] == "step"]


def in_generation(number: int) -> Callable[[Path], bool]:
    """Return whether a generation has done a step."""

    def condition(folder: Path) -> bool:
        events = read_lines(folder / "logs" / "events.jsonl")
        return any(event["event"] == "step" and event["generation"] == number for event in events)

    return condition


def saved(folder: Path) -> list[int]:
    return [event["step"] for event in read_lines(folder / "logs" / "events.jsonl") if event["event"] == "checkpoint"]
