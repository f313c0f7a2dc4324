"""A run saves on time and on request, outlives saves that fail, and gives up after three in a row."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import CheckpointSpec
from sailor_runtime.training.checkpoint import checkpoint
from sailor_runtime.training.checkpoint.checkpoint import Checkpoints, Saved, Unsaved
from sailor_runtime.training.checkpoint.requests import Control
from sailor_runtime.training.checkpoint.saving import Saver
from sailor_runtime.training.checkpoint.staging import Staging, fits


@dataclass
class Engine:
    next_step: int = 0


@dataclass
class Endings:
    """Stands for checkpoints whose saves end as they are told to."""

    endings: list[str]
    running: bool = False
    notes: list[dict[str, Any]] = field(default_factory=list)
    _outcome: Saved | Unsaved | None = None

    def begin(self, engine: Engine, notes: dict[str, Any]) -> None:
        self.notes.append(notes)
        fine = self.endings.pop(0) == "saved"
        step = engine.next_step
        self._outcome = Saved(step=step, path=f"run/step-{step}") if fine else Unsaved(step=step, reason="disk full")

    def wait(self) -> Saved | Unsaved | None:
        outcome, self._outcome = self._outcome, None
        return outcome

    def finished(self) -> Saved | Unsaved | None:
        return self.wait()

    def location(self, name: str) -> str:
        return f"run/{name}"


def _saver(checkpoints: Endings, events: list[Any], every_s: float = 3600.0) -> Saver:
    spec = CheckpointSpec(directory="run", every_s=every_s, keep=2)

    def report(event: str, **fields: Any) -> None:
        events.append((event, fields["step"]))

    saver = Saver(spec, checkpoints, Control(None), lambda: {"loss_mean": 1.0}, report)
    saver.start_from(Engine(), None)
    return saver


def _save(saver: Saver, step: int) -> None:
    saver.begin(Engine(step))
    saver.poll()


def test_only_who_leads_looks_at_the_clock_and_nobody_while_a_save_runs():
    checkpoints = Endings([])
    saver = _saver(checkpoints, [], every_s=0.0)
    assert saver.save_requested(leads=True)
    assert not saver.save_requested(leads=False)
    checkpoints.running = True
    assert not saver.save_requested(leads=True)


def test_the_clock_asks_for_no_save_while_the_loss_rises_but_a_request_does(tmp_path):
    requests = tmp_path / "control.json"
    rising = [True]
    spec = CheckpointSpec(directory="run", every_s=0.0, keep=2)
    control = Control(requests)
    saver = Saver(spec, Endings([]), control, dict, None, lambda: rising[0])
    assert not saver.save_requested(leads=True)
    requests.write_text('{"checkpoint": 1, "stop": false}')
    control.poll()
    assert saver.save_requested(leads=True)
    control.checkpoint_done()
    rising[0] = False
    assert saver.save_requested(leads=True)


def test_occasional_failures_of_saves_are_reported_and_survived():
    events: list[Any] = []
    checkpoints = Endings(["failed", "failed", "saved", "failed", "failed", "saved"])
    saver = _saver(checkpoints, events)
    for step in range(1, 7):
        _save(saver, step)
    assert [name for name, _ in events] == [
        f"checkpoint{end}" for end in ("_failed", "_failed", "", "_failed", "_failed", "")
    ]
    assert saver.last == "the last good checkpoint is run/step-6"
    assert checkpoints.notes == [{"loss_mean": 1.0}] * 6


def test_the_third_failure_in_a_row_stops_the_run_and_names_the_last_good_checkpoint():
    saver = _saver(Endings(["saved", "failed", "failed", "failed"]), [])
    for step in (1, 2, 3):
        _save(saver, step)
    with pytest.raises(RefusedError, match=r"3 checkpoints in a row .*: disk full; the last good .* run/step-1"):
        _save(saver, 4)


def test_the_end_is_saved_again_until_it_is_there_or_it_is_clear_that_it_can_not_be():
    events: list[Any] = []
    saver = _saver(Endings(["failed", "saved"]), events)
    saver.finish(Engine(9))
    assert events == [("checkpoint_failed", 9), ("checkpoint", 9)]
    with pytest.raises(RefusedError, match="there is no checkpoint yet"):
        _saver(Endings(["failed"] * 3), []).finish(Engine(9))


def test_copies_to_be_written_take_the_same_memory_each_time_and_none_is_shared():
    staging, weight = Staging(), torch.arange(4.0, requires_grad=True)
    first = staging.copy(("weight", (0,)), weight)
    other = staging.copy(("weight", (4,)), weight)
    assert len({first.data_ptr(), other.data_ptr(), weight.data_ptr()}) == 3
    assert not first.requires_grad
    with torch.no_grad():
        weight += 1.0
    assert first.tolist() == [0.0, 1.0, 2.0, 3.0]
    again = staging.copy(("weight", (0,)), weight)
    assert again.data_ptr() == first.data_ptr()
    assert again.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert other.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert staging.copy(("weight", (0,)), torch.zeros(2, dtype=torch.float64)).tolist() == [0.0, 0.0]


def test_a_save_uses_the_device_of_its_rank_in_its_own_thread(monkeypatch, tmp_path):
    """Otherwise torch's writer waits for CUDA device 0, where this rank then takes memory."""
    device, calls = torch.device("cuda", 3), []
    monkeypatch.setattr(torch.cuda, "set_device", lambda used: calls.append((threading.current_thread().name, used)))
    checkpoints = Checkpoints.__new__(Checkpoints)
    checkpoints._running, checkpoints._data, checkpoints._staging, checkpoints._scarce = None, None, Staging(), False
    monkeypatch.setattr(Checkpoints, "_owned", lambda self, engine: ())
    monkeypatch.setattr(Checkpoints, "_write", lambda *_: calls.append("written") or Saved(step=1, path="step-1"))
    monkeypatch.setattr(checkpoint, "description", lambda *_, **__: {})
    engine = SimpleNamespace(check_buffers=lambda: None, keeps_buffers=False, next_step=1, device=device)
    checkpoints.begin(engine)
    assert checkpoints.wait() == Saved(step=1, path="step-1")
    assert calls == [("checkpoint", device), "written"]


def test_copies_fit_if_the_node_has_memory_to_spare(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16000000 kB\nMemAvailable:    1000 kB\nHugePages_Total:   0\n")
    assert fits(800 * 1024, meminfo)
    assert not fits(801 * 1024, meminfo)
    assert fits(2**60, tmp_path / "none")
