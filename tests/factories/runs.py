"""Runs of the real command on this machine: a tiny job on two local nodes, watched through its run folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from factories.documents import document
from factories.honest import honest
from factories.warm import COMMAND_LINE, warm

COMMAND = Path(sys.executable).with_name("sailor-cloud")
PATIENCE_S = 120.0


@dataclass(slots=True)
class Up:
    """A running `sailor-cloud up`."""

    process: subprocess.Popen[str]
    home: Path

    @property
    def folder(self) -> Path:
        (folder,) = (self.home / "runs").iterdir()
        return folder

    def wait_for(self, condition: Callable[[Path], bool], what: str) -> None:
        """Wait until the run folder meets a condition; fail when the command ends before."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if (self.home / "runs").is_dir() and any((self.home / "runs").iterdir()) and condition(self.folder):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        out, err = self.process.communicate()
        raise AssertionError(f"the run never came to {what}; it said:\n{out}\n{err}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str, str]:
        """Wait for the command and return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def write_job(home: Path, *, steps: int, every_s: float | None = None) -> Path:
    """Write the job of `documents`, and beside it the plan for two nodes that the tests carry out."""
    job, planned = home / "tiny.yaml", document(steps=steps)
    if every_s is not None:
        saved = planned.job.checkpoint.model_copy(update={"every": every_s})
        planned = replace(planned, job=planned.job.model_copy(update={"checkpoint": saved}))
    planned = honest(planned)
    job.write_text(planned.job.model_dump_json())
    (home / "plan.json").write_text(planned.to_json())
    return job


def start_up(
    home: Path, *, steps: int, every_s: float | None = None, command: Sequence[str | Path] | None = None
) -> Up:
    """Start `sailor-cloud up`, by `command` if that is given."""
    job = write_job(home, steps=steps, every_s=every_s)
    process = subprocess.Popen(
        [*(command or warm(COMMAND_LINE)), "up", str(job), "--plan", str(home / "plan.json"), "--yes"],
        env={**os.environ, "SAILOR_CLOUD_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return Up(process, home)


def sailor(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run another command on the same runs."""
    environment = {**os.environ, "SAILOR_CLOUD_HOME": str(home)}
    command = [*warm(COMMAND_LINE), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def journal_has(event: str) -> Callable[[Path], bool]:
    def condition(folder: Path) -> bool:
        return event in {entry["event"] for entry in read_lines(folder / "journal.jsonl")}

    return condition


def has_trained(folder: Path) -> bool:
    return any(event["event"] == "step" for event in read_lines(folder / "logs" / "events.jsonl"))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSON lines file that somebody may be writing."""
    if not path.is_file():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


def processes_of(run_id: str) -> list[int]:
    """Return the processes that carry a run's tag, found without the product's own sweep."""
    tag = f"SAILOR_CLOUD_RUN={run_id}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if tag in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def assert_nothing_is_left(folder: Path) -> None:
    """Check by other means than the product's that a run has left no process and no node."""
    assert processes_of(folder.name) == []
    assert list((folder / "nodes").iterdir()) == []
    receipt = json.loads((folder / "receipt.json").read_text())
    assert all(resource["gone_at"] for resource in receipt["resources"])
