"""The course of one rank: join, verify, calibrate, then train from the newest checkpoint to the end."""

from __future__ import annotations

import time
from pathlib import Path

from sailor_runtime.spec import RunSpec
from sailor_runtime.training import layout, verify
from sailor_runtime.training.architecture import architecture_of
from sailor_runtime.training.calibrate import calibrate
from sailor_runtime.training.checkpoint import Checkpoints, Saved
from sailor_runtime.training.control import Control
from sailor_runtime.training.data import Samples, open_samples
from sailor_runtime.training.devices import Device, device_of
from sailor_runtime.training.engine import Engine, Step
from sailor_runtime.training.environment import node_of
from sailor_runtime.training.events import EventWriter
from sailor_runtime.training.precision import precision_of, set_up
from sailor_runtime.training.refusal import RefusedError
from sailor_runtime.training.world import World


def check(spec: RunSpec) -> None:
    """Raise RefusedError for a spec that this runtime can't train."""
    architecture_of(spec.model)
    layout.check(spec)
    precision_of(spec.training.precision)
    if spec.zero_stage not in (0, 1):
        raise RefusedError(f"zero_stage {spec.zero_stage} is not supported; supported: 0, 1")
    if "://" in spec.checkpoint.directory:
        raise RefusedError(f"checkpoint directory {spec.checkpoint.directory!r} must be a path, mounted on every node")
    if spec.training.steps < 1:
        raise RefusedError(f"steps must be positive, got {spec.training.steps}")


def run(spec: RunSpec, rank: int, events: EventWriter, control: Control) -> None:
    """Train rank `rank` of a spec to its end or until a stop is requested.

    Raises RefusedError for a spec that can't be trained, and where the check against one process fails.
    """
    check(spec)
    place = layout.places(spec)[rank]
    stage = spec.pipelines[place.pipeline].stages[place.stage]
    device = device_of(node_of(spec, rank), stage.devices[place.tp_index])
    set_up(spec.training.precision, device.torch_device)
    samples = open_samples(spec)
    events.write("progress", phase="joining")
    atoms = layout.atoms(spec)
    world = World(spec, rank, atoms, backend="gloo" if device.torch_device.type == "cpu" else "nccl")
    _Rank(spec, place, world, atoms, samples, device, events, control).run()
    world.close()


class _Rank:
    """What the phases of one rank share."""

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
    ) -> None:
        self._spec = spec
        self._place = place
        self._world = world
        self._atoms = atoms
        self._samples = samples
        self._device = device
        self._events = events
        self._control = control
        self._checkpoints = Checkpoints(Path(spec.checkpoint.directory), spec.checkpoint.keep, world, atoms)

    def run(self) -> None:
        if self._world.rank == 0:
            self._events.write("data", **self._samples.description())
        if self._spec.verify_steps > 0:
            self._verify()
        if self._spec.calibrate:
            self._calibrate()
        self._train()

    def _engine(self, precision: str) -> Engine:
        return Engine(
            self._spec, self._place, self._world, self._atoms, self._samples, self._device, precision_of(precision)
        )

    def _progress(self, phase: str) -> None:
        self._events.write("progress", phase=phase)

    def _verify(self) -> None:
        self._progress("verify")
        outcome = verify.verify(
            self._engine("fp64"),
            self._world,
            self._samples,
            steps=self._spec.verify_steps,
            tolerance=verify.TOLERANCE,
            alive=lambda: self._progress("verify"),
        )
        if self._world.rank == 0:
            self._events.write(
                "verified",
                passed=outcome.passed,
                steps=outcome.steps,
                max_abs_difference=outcome.max_abs_difference,
                loss_difference=outcome.loss_difference,
                tolerance=outcome.tolerance,
                seconds=outcome.seconds,
            )
        if not outcome.passed:
            raise RefusedError(
                f"{outcome.steps} steps of this plan differ from one process by {outcome.max_abs_difference:.3g} in "
                f"weights and {outcome.loss_difference:.3g} in loss; tolerance {outcome.tolerance:.3g}"
            )

    def _calibrate(self) -> None:
        self._progress("calibrate")
        engine = self._engine(self._spec.training.precision)
        measured = calibrate(engine, self._place, self._world, lambda: self._progress("calibrate"))
        if self._world.rank == 0:
            self._events.write("calibrated", **measured)

    def _train(self) -> None:
        engine = self._engine(self._spec.training.precision)
        start, damaged = self._checkpoints.latest()
        if start is not None:
            self._checkpoints.load(engine, start)
        if self._world.rank == 0:
            for fault in damaged:
                self._events.write("checkpoint_damaged", reason=fault)
            self._events.write(
                "training", first_step=engine.next_step, checkpoint=None if start is None else str(start)
            )
        self._progress("train")
        saved_step = engine.next_step if start is not None else -1
        saved_at = time.monotonic()
        stopped = False
        while engine.next_step < self._spec.training.steps and not stopped:
            self._control.poll()
            due = self._world.rank == 0 and time.monotonic() - saved_at >= self._spec.checkpoint.every_s
            step = engine.step([float(due or self._control.checkpoint), float(self._control.stop)])
            self._report(engine, step)
            stopped = step.flags[1] > 0
            if step.flags[0] > 0 and not stopped and engine.next_step < self._spec.training.steps:
                self._report_saved(self._checkpoints.wait())
                self._checkpoints.begin(engine)
                self._control.checkpoint_done()
                saved_step, saved_at = engine.next_step, time.monotonic()
            self._report_saved(self._checkpoints.finished())
        self._progress("checkpoint")
        self._report_saved(self._checkpoints.wait())
        if saved_step != engine.next_step:
            self._checkpoints.begin(engine)
            self._report_saved(self._checkpoints.wait())
        finished = engine.next_step >= self._spec.training.steps
        self._events.write("ended", reason="finished" if finished else "requested", step=engine.next_step)

    def _report(self, engine: Engine, step: Step) -> None:
        number = engine.next_step
        if engine.scale.exhausted:
            raise RefusedError(f"gradients overflow fp16 at step {number} even with loss scale {engine.scale.scale}")
        if not step.finite and not step.skipped:
            raise RefusedError(
                f"step {number + 1} has loss {step.loss} and gradient norm {step.gradient_norm}; weights are left as "
                f"they were after step {number}; lower the learning rate or resume from the last checkpoint"
            )
        if self._world.rank != 0:
            self._events.write("progress", phase="train", step=number)
            return
        training = self._spec.training
        self._events.write(
            "step",
            step=number,
            loss=step.loss,
            grad_norm=step.gradient_norm,
            tokens=number * training.global_batch_size * training.sequence_length,
            iteration_s=step.iteration_s,
            compute_s=step.compute_s,
            transfer_s=step.transfer_s,
            sync_s=step.sync_s,
            learning_rate=step.learning_rate,
            **({"loss_scale": engine.scale.scale, "skipped": step.skipped} if engine.scale.dynamic else {}),
        )

    def _report_saved(self, saved: Saved | None) -> None:
        if saved is not None and self._world.rank == 0:
            self._events.write("checkpoint", step=saved.step, path=str(saved.path))
