"""An agent process of a test, its folder, and looks at its processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from factories.run_specs import PipelineShape, run_spec

ROOT = Path(__file__).resolve().parents[2]
AGENT = (sys.executable, "-m", "sailor_runtime.agent")
TWO_RANKS = ((6, 2, ((0, 3, 1), (3, 6, 1))),)


class RunningAgent:
    """An agent process and its folder."""

    def __init__(self, home: Path, behaviour: str, *options: str, rank_module: str = "factories.fake_rank") -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [*AGENT, "--home", str(home), "--node", "node-0", "--rank-module", rank_module, *options],
            env=environment(behaviour),
        )
        self.sent = 0

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        path = self.home / "agent.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if kind in (None, event["event"])]

    def wait_for(self, kind: str, count: int = 1, *, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Return the events of a kind once there are `count`."""
        wait_until(lambda: len(self.events(kind)) >= count, lambda: f"{count} {kind!r}: {self.events()}", timeout_s)
        return self.events(kind)

    def command(self, name: str, *, generation: int = 1, plan_hash: str = "hash-1", **details: Any) -> None:
        self.sent += 1
        body = {"command": name, "generation": generation, "plan_hash": plan_hash, **details}
        partial = self.home / "inbox" / "partial"
        partial.write_text(json.dumps(body))
        partial.rename(self.home / "inbox" / f"{self.sent:06d}-{name}.json")

    def start(self, generation: int = 1, pipelines: Sequence[PipelineShape] = TWO_RANKS, **fields: Any) -> None:
        """Send a spec and the command to start it."""
        self.wait_for("hello")
        plan_hash = f"hash-{generation}"
        spec = run_spec(pipelines, directory=self.home, generation=generation, plan_hash=plan_hash, **fields)
        (self.home / "spec.json").write_text(spec.to_json())
        self.command("start", generation=generation, plan_hash=plan_hash, spec="spec.json")

    def rank_pids(self) -> list[int]:
        """Return the processes of ranks that live: children of the agent, or of the fork server that forked them."""
        return [rank for child in children_of(self.process.pid) for rank in ranks_of(child)]

    def all_pids(self) -> list[int]:
        """Return every process below the agent, the fork server included."""
        children = children_of(self.process.pid)
        return [*children, *(rank for child in children for rank in children_of(child))]


def ranks_of(child: int) -> list[int]:
    try:
        command = Path(f"/proc/{child}/cmdline").read_bytes()
    except FileNotFoundError:
        return []
    return children_of(child) if b"sailor_runtime.training.fork_server" in command else [child]


def environment(behaviour: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "runtime"), str(ROOT / "tests")])
    return {**os.environ, "FAKE_RANK": behaviour, "PYTHONPATH": path, "SAILOR_CLOUD_RUN": "run-1"}


def children_of(pid: int) -> list[int]:
    """Return the children of a process that live. Reads the state of every process, so it is not for tight loops."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what if isinstance(what, str) else what()}")
        time.sleep(0.02)
