"""The rank processes of one generation on this node."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor_runtime.spec import RunSpec

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TAIL_BYTES = 4000
# Loaded before any fork, since little may be done between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Rank:
    """One rank process, its files, and what it has said."""

    number: int
    process: subprocess.Popen[bytes]
    events: Path
    log: Path
    offset: int = 0
    phase: str = "starting"
    ended: dict[str, Any] | None = None
    last_sign: float = field(default_factory=time.monotonic)

    def new_events(self) -> list[dict[str, Any]]:
        """Return events that were written since the last call; each is a sign of life."""
        try:
            with self.events.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return []
        self.offset += len(whole)
        self.last_sign = time.monotonic()
        return [json.loads(line) for line in whole.splitlines()]

    def tail(self) -> str:
        """Return the end of the rank's log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""


def start_rank(spec: RunSpec, spec_path: Path, number: int, *, home: Path, module: str, control: Path) -> Rank:
    """Start one rank as a child that dies with the agent."""
    stem = f"g{spec.generation}-rank{number}"
    events, log = home / "events" / f"{stem}.jsonl", home / "logs" / f"{stem}.log"
    for path in (events, log):
        path.parent.mkdir(parents=True, exist_ok=True)
    events.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, "--spec", str(spec_path), "--rank", str(number)]
    command += ["--events", str(events), "--control", str(control), "--home", str(home)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
            env={**os.environ, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"},
            preexec_fn=_die_with_parent,
        )
    return Rank(number=number, process=process, events=events, log=log)


def _python_path() -> str:
    """Return the module path with the folder first from which the agent itself was loaded."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def kill(ranks: list[Rank], *, grace_s: float = 0.0) -> None:
    """End ranks: SIGTERM and up to `grace_s` seconds if that is positive, then SIGKILL; returns when all are gone."""
    if grace_s > 0:
        for rank in ranks:
            if rank.process.poll() is None:
                rank.process.terminate()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and any(rank.process.poll() is None for rank in ranks):
            time.sleep(0.02)
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.kill()
    for rank in ranks:
        rank.process.wait()
