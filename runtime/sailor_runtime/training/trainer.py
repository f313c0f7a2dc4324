"""The phases of one rank: join, verify, calibrate, then train from the newest checkpoint to the end."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import NCCL_SOCKETS, SCHEDULES, ZERO_BUBBLE, RunSpec
from sailor_runtime.training import verify
from sailor_runtime.training.calibrate import calibrate
from sailor_runtime.training.checkpoint.checkpoint import Checkpoints
from sailor_runtime.training.checkpoint.description import changed_settings
from sailor_runtime.training.checkpoint.requests import Control
from sailor_runtime.training.checkpoint.saving import Saver
from sailor_runtime.training.data.same_data import agreed_identity
from sailor_runtime.training.data.samples import Samples, SyntheticSamples, open_samples
from sailor_runtime.training.engine import Engine, Step
from sailor_runtime.training.model import same_weights
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.narrow import narrowed
from sailor_runtime.training.observe import trace
from sailor_runtime.training.observe.divergence import LossTrend
from sailor_runtime.training.observe.events import EventWriter
from sailor_runtime.training.observe.metrics import Metrics
from sailor_runtime.training.observe.traffic import TrafficMeter
from sailor_runtime.training.optimizer import optimizer
from sailor_runtime.training.optimizer.precision import precision_of, set_up
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import Device, device_of
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.preflight import preflight

# The step of a generation that is written as a trace: earlier ones are slower, since memory is still being mapped.
_TRACED = 3
# How often a rank that waits for a save reports that it does.
_REPORTED_S = 1.0


def check(spec: RunSpec) -> None:
    """Raise RefusedError for a spec that this runtime can't train."""
    architecture_of(spec.model)
    layout.check(spec)
    precision_of(spec.training.precision)
    if spec.zero_stage not in range(4):
        raise RefusedError(f"zero_stage {spec.zero_stage} is not supported; supported: 0, 1, 2, 3")
    if spec.training.sums not in ("fp32", "bf16"):
        raise RefusedError(f"sums in {spec.training.sums!r} are not supported; supported: fp32, bf16")
    if spec.training.compile and spec.training.dropout > 0.0:
        raise RefusedError(
            f"compile needs dropout 0, got {spec.training.dropout:g}: what is dropped changes every step"
        )
    if spec.pipeline_schedule not in SCHEDULES:
        raise RefusedError(f"unknown pipeline schedule {spec.pipeline_schedule!r}; known: {', '.join(SCHEDULES)}")
    if spec.training.compile and spec.pipeline_schedule == ZERO_BUBBLE:
        raise RefusedError("a zero-bubble schedule halves backward passes, which compiled layers can't: leave one out")
    if spec.training.sync_every is not None and spec.training.sync_every < 1:
        raise RefusedError(f"sync_every must be positive, got {spec.training.sync_every}")
    if spec.training.steps < 1:
        raise RefusedError(f"steps must be positive, got {spec.training.steps}")


def run(spec: RunSpec, rank: int, events: EventWriter, control: Control, *, metrics: Path) -> None:
    """Train rank `rank` of a spec to its end or until a stop is requested.

    metrics: rank 0's folder for the times of each step. Raises RefusedError for a spec that can't be trained, and if
    the check against one process fails.
    """
    check(spec)
    place = layout.places(spec)[rank]
    stage = spec.pipelines[place.pipeline].stages[place.stage]
    device = device_of(spec.node_of(rank), stage.devices[place.tp_index])
    set_up(spec.training.precision, device.torch_device)
    optimizer.check(spec.training.optimizer, device.torch_device)
    samples = open_samples(spec)
    events.write("progress", phase="joining")
    if spec.sockets:
        # NCCL reads its variables when the first group is made.
        os.environ.update(NCCL_SOCKETS)
    atoms = layout.atoms(spec)
    world = World(spec, rank, atoms, backend="gloo" if device.torch_device.type == "cpu" else "nccl")
    # Modules live as long as the process, and their repeated garbage collection took 6 % of a step of small layers.
    gc.freeze()
    _Rank(spec, place, world, atoms, samples, device, events, control, metrics).run()
    world.close()


class _Rank:
    """The state that the phases of one rank share."""

    def __init__(
        self,
        spec: RunSpec,
        place: layout.Place,
        world: World,
        atoms: tuple[layout.Atom, ...],
        samples: Samples,
        device: Device,
        events: EventWriter,
        control: Control,
        metrics: Path,
    ) -> None:
        self._spec = spec
        self._place = place
        self._world = world
        self._atoms = atoms
        self._samples = samples
        self._device = device
        self._events = events
        self._control = control
        self._metrics_folder = metrics
        self._metrics = Metrics(metrics, spec, layout.places(spec), atoms) if world.rank == 0 else None
        data = agreed_identity(spec, place, samples, world)
        kept = spec.checkpoint
        self._checkpoints = Checkpoints(kept.directory, kept.keep, world, atoms, data.as_dict())
        self._course = LossTrend(most_rise=spec.training.max_loss_rise)
        report = events.write if world.rank == 0 else None
        self._saver = Saver(
            spec.checkpoint, self._checkpoints, control, self._course.notes, report, lambda: self._course.doubtful
        )
        self._traffic = TrafficMeter(spec, world.rank)
        # Settings that differ from those of the checkpoint.
        self._changed: list[str] = []

    def run(self) -> None:
        stage = self._spec.pipelines[self._place.pipeline].stages[self._place.stage]
        same_weights.check(self._spec, stage.layers, self._world.everyone)
        if self._world.rank == 0:
            self._events.write("data", **self._samples.description())
        # Fail early if the plan can't continue from its checkpoint, before minutes of checks.
        start = self._find_checkpoint()
        if self._spec.calibrate:
            self._preflight()
        if self._spec.verify_steps > 0:
            self._verify()
        if self._spec.calibrate:
            self._calibrate()
        self._train(start)

    def _engine(
        self,
        phase: str,
        precision: str,
        spec: RunSpec | None = None,
        samples: Samples | None = None,
        *,
        restored: bool = False,
    ) -> Engine:
        # The previous phase's device memory is released, and its peak does not count for this one.
        gc.collect()
        if self._device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device.torch_device)
        return Engine(
            spec or self._spec,
            self._place,
            self._world,
            self._atoms if spec is None else layout.atoms(spec),
            samples or self._samples,
            self._device,
            precision_of(precision),
            restored=restored,
            alive=lambda: self._progress(phase),
        )

    def _progress(self, phase: str) -> None:
        self._events.write("progress", phase=phase)

    def _preflight(self) -> None:
        self._progress("preflight")
        found = preflight(self._spec, self._world, self._device)
        if self._world.rank == 0:
            self._events.write("preflight", **found)

    def _verify(self) -> None:
        self._progress("verify")
        spec, samples = self._spec, self._samples
        if spec.verify_narrow:
            spec = narrowed(spec)
            samples = SyntheticSamples(spec.model.vocab_size, spec.training.sequence_length, spec.training.seed)
        # Rounded sums differ from one process by design.
        training, steps = replace(spec.training, sums="fp32"), spec.verify_steps
        if training.sync_every is not None:
            # Islands must meet within the steps of the check.
            training = replace(training, sync_every=min(training.sync_every, max(1, steps // 2)))
        outcome = verify.verify(
            self._engine("verify", "fp64", replace(spec, training=training), samples),
            self._world,
            samples,
            steps=steps,
            tolerance=verify.TOLERANCE,
            alive=lambda: self._progress("verify"),
        )
        if self._world.rank == 0:
            self._events.write(
                "verified",
                passed=outcome.passed,
                steps=outcome.steps,
                narrow=spec.verify_narrow,
                max_abs_difference=outcome.max_abs_difference,
                loss_difference=outcome.loss_difference,
                norm_difference=outcome.norm_difference,
                tolerance=outcome.tolerance,
                seconds=outcome.seconds,
            )
        if not outcome.passed:
            raise RefusedError(
                f"{outcome.steps} steps of this plan differ from one process by {outcome.max_abs_difference:.3g} in "
                f"weights, {outcome.loss_difference:.3g} in loss and {outcome.norm_difference:.3g} in gradient norm; "
                f"tolerance {outcome.tolerance:.3g}"
            )

    def _calibrate(self) -> None:
        self._progress("calibrate")
        engine = self._engine("calibrate", self._spec.training.precision)
        measured = calibrate(engine, self._place, self._world, lambda: self._progress("calibrate"))
        if self._world.rank == 0:
            self._events.write("calibrated", **measured)

    def _find_checkpoint(self) -> str | None:
        """Return the checkpoint to continue from, None to start. Raises RefusedError if neither is right."""
        self._progress("checkpoint")
        self._checkpoints.check()
        start, damaged = self._checkpoints.latest()
        known = self._spec.checkpoint
        if start is None and damaged:
            raise RefusedError(
                f"no checkpoint in {known.directory} can be read: {'; '.join(damaged)}; training does not begin again. "
                "To continue, restore these files and start the job with this place as checkpoint.to; to begin again, "
                "name another place"
            )
        if start is None and known.saved_step > 0:
            raise RefusedError(
                f"step {known.saved_step} was saved in {known.directory}, but nothing is there now; training does not "
                "begin again. Is everything mounted, and under the same name on every node?"
            )
        if self._world.rank == 0:
            for fault in damaged:
                self._events.write("checkpoint_damaged", reason=fault)
        if start is not None:
            self._changed = changed_settings(self._checkpoints.describe(self._spec, start), self._spec)
        return start

    def _train(self, start: str | None) -> None:
        self._progress("checkpoint")
        engine = self._engine("checkpoint", self._spec.training.precision, restored=start is not None)
        if start is not None:
            self._course.restore(self._checkpoints.load(engine, start))
        self._saver.start_from(engine, start)
        if self._world.rank == 0:
            checkpoint = None if start is None else self._checkpoints.location(start)
            self._events.write("training", first_step=engine.next_step, checkpoint=checkpoint, changed=self._changed)
        self._progress("train")
        self._traffic.connect(self._world)
        self._meter(engine)
        first_step = engine.next_step
        stopped = False
        while engine.next_step < self._spec.training.steps and not stopped:
            self._control.poll()
            wanted = self._saver.save_requested(leads=self._world.rank == 0)
            step = engine.step([float(wanted), float(self._control.stop)])
            self._report(engine, step)
            if engine.next_step == first_step + _TRACED:
                self._trace(engine)
            stopped = step.flags[1] > 0
            if step.flags[0] > 0 and not stopped and engine.next_step < self._spec.training.steps:
                self._saver.begin(engine)
                if self._checkpoints.holds_training:
                    while self._checkpoints.running:
                        self._progress("checkpoint")
                        time.sleep(_REPORTED_S)
                    self._saver.wait()
                    self._progress("train")
            self._saver.poll()
            self._meter(engine)
        rows = engine.exchange()
        if self._metrics is not None:
            self._metrics.close(rows)
        self._progress("checkpoint")
        self._saver.finish(engine)
        self._meter(engine, now=True)
        finished = engine.next_step >= self._spec.training.steps
        self._events.write("ended", reason="finished" if finished else "requested", step=engine.next_step)

    def _meter(self, engine: Engine, *, now: bool = False) -> None:
        sent = self._traffic.read(now=now)
        if sent is not None:
            self._events.write("traffic", step=engine.next_step, sent=sent)

    def _report(self, engine: Engine, step: Step) -> None:
        number = engine.next_step
        if engine.scale.exhausted:
            raise RefusedError(f"gradients overflow fp16 at step {number} even with loss scale {engine.scale.scale}")
        if not step.finite and not step.skipped:
            raise RefusedError(
                f"step {number + 1} has loss {step.loss} and gradient norm {step.gradient_norm}; weights stay at step "
                f"{number}; {self._saver.last}; lower the learning rate"
            )
        self._course.add(step.loss)
        if self._course.diverged:
            raise RefusedError(
                f"the loss diverges: its mean has risen from {self._course.lowest:.3f} to {self._course.mean:.3f} at "
                f"step {number}, by more than max_loss_rise {self._course.most_rise}; {self._saver.last}; lower the "
                "learning rate, or raise max_loss_rise"
            )
        if self._world.rank != 0:
            self._events.write("progress", phase="train", step=number)
            return
        values = self._values(engine, step)
        if self._metrics is not None:
            self._metrics.step({"ts": time.time(), "generation": self._spec.generation, **values}, step.rows)
        self._events.write("step", **values)

    def _values(self, engine: Engine, step: Step) -> dict[str, Any]:
        """Return the fields of a step's event; seconds are those of rank 0."""
        training, own = self._spec.training, step.spent
        tokens = training.global_batch_size * training.sequence_length
        return {
            "step": engine.next_step,
            "loss": step.loss,
            "grad_norm": step.gradient_norm,
            "tokens": engine.next_step * tokens,
            "tokens_per_s": tokens / own.iteration_s,
            "iteration_s": own.iteration_s,
            "predicted_iteration_s": self._spec.predicted_iteration_s,
            "compute_s": own.compute_s,
            "transfer_s": own.transfer_s,
            "bubble_s": own.bubble_s,
            "sync_s": own.sync_s,
            "memory_peak_bytes": int(own.memory_peak_bytes),
            "most_memory_bytes": int(max([own.memory_peak_bytes, *(row[-1] for row in step.rows)])),
            "learning_rate": step.learning_rate,
            **({"loss_scale": engine.scale.scale, "skipped": step.skipped} if engine.scale.dynamic else {}),
        }

    def _trace(self, engine: Engine) -> None:
        """Write the last step of all ranks as a trace."""
        everyone = trace.gather(engine.spans, self._world)
        if self._world.rank == 0:
            path = self._metrics_folder / f"trace-g{self._spec.generation}-step{engine.next_step}.json"
            trace.write(path, trace.trace_events(self._spec, layout.places(self._spec), everyone))
