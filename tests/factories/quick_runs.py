"""Runs through the real controller, Terraform, SSH and agents, with ranks that need no torch."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from factories.documents import document
from factories.runs import read_lines
from factories.warm import warm
from sailor_cloud.clock import SystemClock
from sailor_cloud.durable import write_atomically
from sailor_cloud.launch.fleet import agents
from sailor_cloud.launch.start import resume_run, run_document
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.provision import processes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.options import LaunchOptions, Outcome
from sailor_cloud.run.progress import ResourceNews, RunProgress
from sailor_cloud.workload import decoder

CLOCK = SystemClock()
PATIENCE_S = 60.0
RANKS = "factories.fake_trainer"
EXTRA_PATHS = (str(Path(__file__).resolve().parents[1]),)
QUICK = LaunchOptions(poll_s=0.05, watch_s=0.2, lost_after_s=3.0, settle_s=0.5, agent_timeout_s=8.0, silence_s=2.0)


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def resource(self, news: ResourceNews) -> None: ...

    def progress(self, progress: RunProgress) -> None: ...

    def step(self, progress: RunProgress) -> None: ...

    def close(self) -> None: ...

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(slots=True)
class QuickRun:
    """A run in a thread of this process."""

    home: Path
    notes: Notes = field(default_factory=Notes)
    folder: RunFolder | None = None
    outcome: Outcome | None = None
    error: BaseException | None = None
    _stop: Callable[[], None] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None

    def start(
        self,
        planned: PlanDocument,
        *,
        options: LaunchOptions = QUICK,
        search: Callable[[Job], PlanDocument] | None = None,
        resume: bool = False,
    ) -> None:
        model = decoder(planned.job.model)

        def work() -> None:
            shared: dict[str, Any] = {
                "decoder": model,
                "observer": self.notes,
                "clock": CLOCK,
                "options": options,
                "on_start": self._started,
                "search": search,
            }
            try:
                if resume:
                    assert self.folder is not None
                    self.outcome = resume_run(self.folder, **shared)
                else:
                    self.outcome = run_document(planned, **shared)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def _started(self, folder: RunFolder, stop: Callable[[], None]) -> None:
        self.folder, self._stop, self._loop = folder, stop, asyncio.get_running_loop()

    def interrupt(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop)

    def wait_for(self, condition: Callable[[RunFolder], bool], what: str) -> RunFolder:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            assert self._thread is not None
            if self.folder is not None and condition(self.folder):
                return self.folder
            if not self._thread.is_alive():
                break
            time.sleep(0.02)
        raise AssertionError(f"never came to {what}: {self.outcome} {self.error}\n{self.notes.text}")

    def end(self) -> Outcome:
        assert self._thread is not None
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.notes.text
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


@contextmanager
def quick_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    """A run with quick ranks; what still lives at the end is killed."""
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(home))
    monkeypatch.setattr(agents, "RANK_MODULE", RANKS)
    monkeypatch.setattr(agents, "EXTRA_PATHS", EXTRA_PATHS)
    run = QuickRun(home)
    try:
        yield run
    finally:
        if run.folder is not None:
            processes.end(lambda: processes.of_run(run.folder.run_id), grace_s=0.0)  # type: ignore[union-attr]
        if run._thread is not None:
            run._thread.join(PATIENCE_S)


def killed_run(home: Path, condition: Callable[[RunFolder], bool], *arguments: str) -> RunFolder:
    """Start a controller in a process of its own, kill it once its run meets a condition, and return the run."""
    command = [*warm("factories.quick_main"), *arguments]
    environment = {**os.environ, "SAILOR_CLOUD_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    until = time.monotonic() + 2 * PATIENCE_S
    try:
        while time.monotonic() < until and process.poll() is None:
            found = RunFolder.list(root=home / "runs")
            if found and condition(found[-1]):
                return found[-1]
            time.sleep(0.01)
    finally:
        process.kill()
        _, output = process.communicate()
    ending = "was too slow" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode}"
    raise AssertionError(f"the controller {ending}: {output}")


def planned(*, steps: int, budget_usd: float = 1.0, every_s: float = 600.0, usd_per_hour: float = 0.2) -> PlanDocument:
    """The two-node plan of `documents` for a job of its own length and budget, said to be through in seconds."""
    base = document(steps=steps)
    assert base.prediction is not None
    quick = replace(base.prediction, duration_s=10.0)
    limits = base.constraints.model_copy(update={"budget_usd": budget_usd})
    saved = base.job.checkpoint.model_copy(update={"every": every_s})
    job = base.job.model_copy(update={"constraints": limits, "checkpoint": saved})
    offers = tuple(replace(offer, usd_per_hour=usd_per_hour) for offer in base.inputs.offers)
    inputs = replace(base.inputs, offers=offers)
    return replace(base, job=job, constraints=limits, inputs=inputs, prediction=quick)


def steps_of(folder: RunFolder) -> list[dict[str, Any]]:
    return [event for event in read_lines(folder.logs_dir / "events.jsonl") if event["event"] == "step"]


def trained(steps: int) -> Callable[[RunFolder], bool]:
    return lambda folder: any(event["step"] >= steps for event in steps_of(folder))


def hurry(folder: RunFolder) -> None:
    """Let the ranks do the steps that are left without a pause."""
    for node in folder.nodes_dir.iterdir():
        write_atomically(node / "slow", "0")


def journal(folder: RunFolder, event: str) -> list[dict[str, Any]]:
    return [entry for entry in read_lines(folder.journal_file) if entry["event"] == event]
