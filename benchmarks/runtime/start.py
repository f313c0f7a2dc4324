"""How long a generation of 3 ranks on 3 nodes takes to its first step, and from a death to training again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bars import Bar
from worlds import environment, model_of, spec_of

MODEL = model_of(hidden=128, blocks=6, heads=4, sequence=128, vocabulary=256)
FIRST = [(2, 4, ((0, 4, 1, "CPU-fast"), (4, 8, 1, "CPU-fast"))), (2, 2, ((0, 8, 1, "CPU-slow"),))]
# The same nodes under another plan.
SECOND = [(2, 6, ((0, 3, 1, "CPU-fast"), (3, 6, 1, "CPU-fast"), (6, 8, 1, "CPU-slow")))]
START_BAR_S, AGAIN_BAR_S = 10.0, 15.0
_LIMIT_S = 300.0


class _Node:
    """An agent in a folder of its own."""

    def __init__(self, home: Path, name: str) -> None:
        home.mkdir(parents=True)
        self.home, self.name, self._sent = home, name, 0
        command = [sys.executable, "-m", "sailor_runtime.agent", "--home", str(home), "--node", name]
        self.process = subprocess.Popen(command, env=environment())

    def events(self, kind: str, generation: int | None = None) -> list[dict[str, Any]]:
        path = self.home / "agent.jsonl"
        text = path.read_text() if path.exists() else ""
        found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [each for each in found if each["event"] == kind and generation in (None, each.get("generation"))]

    def start(self, spec: Any) -> None:
        file = self.home / f"spec-{spec.generation}.json"
        file.write_text(spec.to_json())
        self._sent += 1
        body = {"command": "start", "generation": spec.generation, "plan_hash": spec.plan_hash, "spec": file.name}
        partial = self.home / "inbox" / "partial"
        partial.write_text(json.dumps(body))
        partial.rename(self.home / "inbox" / f"{self._sent:06d}-start.json")


def measure(folder: Path, bars: list[Bar], *, repeats: int = 3) -> list[str]:
    """Return the lines of a table and add to `bars`.

    Each time is the median over repeats; the first generation of each has agents that have not run any before.
    """
    starts, deaths = [], []
    for number in range(repeats):
        start_s, again_s = _once(folder / f"start-{number}")
        starts.append(start_s)
        deaths.append(again_s)
    rows = (("start of a generation", starts, START_BAR_S), ("death to training again", deaths, AGAIN_BAR_S))
    lines = ["| 3 ranks on 3 nodes | median | all | bar | |", "|---|---|---|---|---|"]
    for name, seconds, most in rows:
        middle = sorted(seconds)[len(seconds) // 2]
        every = ", ".join(f"{value:.1f}" for value in seconds)
        bar = Bar(what=f"{name}, 3 ranks", found=f"{middle:.1f} s", asked=f"≤ {most:.0f} s", met=middle <= most)
        bars.append(bar)
        lines.append(f"| {name} | {bar.found} | {every} | {bar.asked} | {bar.verdict} |")
    return lines


def _once(folder: Path) -> tuple[float, float]:
    nodes = [_Node(folder / f"node-{number}", f"node-{number}") for number in range(3)]
    try:
        _wait(lambda: all(node.events("hello") for node in nodes))
        started = time.perf_counter()
        for node in nodes:
            node.start(spec_of(MODEL, FIRST, folder, generation=1) if node is nodes[0] else _same(nodes[0], 1))
        _wait(lambda: bool(nodes[0].events("step", 1)))
        start_s = time.perf_counter() - started
        _wait(lambda: len(nodes[0].events("step", 1)) >= 3)
        killed = time.perf_counter()
        os.kill(_rank_pid(nodes[1].process.pid), signal.SIGKILL)
        # What a controller does: once all nodes have stopped, the next plan.
        _wait(lambda: all(node.events("stopped", 1) for node in nodes))
        for node in nodes:
            node.start(spec_of(MODEL, SECOND, folder, generation=2) if node is nodes[0] else _same(nodes[0], 2))
        _wait(lambda: bool(nodes[0].events("step", 2)))
        return start_s, time.perf_counter() - killed
    finally:
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            node.process.wait()


def _same(node: _Node, generation: int) -> Any:
    from sailor_runtime.spec import RunSpec

    return RunSpec.from_json((node.home / f"spec-{generation}.json").read_text())


def _rank_pid(agent: int) -> int:
    """Return the rank process of an agent: its child, or that of the process from which it forks ranks."""
    found = _children(agent)
    while below := [pid for child in found for pid in _children(child)]:
        found = below
    return found[0]


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing after {_LIMIT_S} s")
        time.sleep(0.02)
