"""Checkpoints that any plan can load: saved whole or not at all, the newest named by `latest`."""

from __future__ import annotations

import dataclasses
import datetime
import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from sailor_runtime.training.checkpoint_folder import CheckpointFolder, FileSum, damage, describe, sum_file
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.layout import Atom
from sailor_runtime.training.refusal import RefusedError
from sailor_runtime.training.shards import ShardedEntry
from sailor_runtime.training.stage import Shard
from sailor_runtime.training.weights import Piece
from sailor_runtime.training.world import World

_FORMAT = 1
SAVE_TIMEOUT = datetime.timedelta(minutes=30)
# Fields that a checkpoint and the job must share.
_SHARED = ("format", "model", "optimizer", "sequence_length", "global_batch_size", "seed")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is complete."""

    step: int
    path: Path


class Checkpoints:
    """The checkpoints of one run in one folder that every rank reaches under the same name.

    Tensors are copied to memory when a save begins and written by a thread, over a group of its own, while training
    goes on.
    """

    def __init__(self, directory: Path, keep: int, world: World, atoms: tuple[Atom, ...]) -> None:
        self._folder = CheckpointFolder(directory, keep)
        self._world = world
        self._atoms = atoms
        self._group = dist.new_group(timeout=SAVE_TIMEOUT, backend="gloo")
        self._running: Future[Saved] | None = None

    def latest(self) -> tuple[Path | None, list[str]]:
        """Return the newest undamaged checkpoint and what is wrong with newer ones, the same on all ranks."""
        listing: list[list[Path]] = [self._folder.newest_first() if self._world.rank == 0 else []]
        dist.broadcast_object_list(listing, 0, group=self._group)
        wrong: list[str] = []
        for checkpoint in listing[0]:
            found: list[str | None] = [None] * self._world.size
            dist.all_gather_object(found, damage(checkpoint, self._world.rank, self._world.size), group=self._group)
            faults = [fault for fault in found if fault is not None]
            if not faults:
                return checkpoint, wrong
            wrong.append(faults[0])
        return None, wrong

    def begin(self, engine: Engine) -> None:
        """Begin to save weights, optimizer state and data position; a collective. Waits for a save that still runs."""
        self.wait()
        state: dict[str, Any] = {}
        for piece in self._owned(engine):
            values = {f"model.{piece.parameter}": piece.value, **_optimizer_values(engine, piece)}
            for key, value in values.items():
                # The copy is what lets training change the weights meanwhile.
                copy = value.detach().to("cpu", copy=True)
                _entry(state, engine, key, piece).hold(copy, piece.offsets)
        self._running = running = Future[Saved]()
        arguments = (running, engine.next_step, state, _description(engine))
        # A daemon, so that a rank that fails can end while its save waits for ranks that are gone.
        threading.Thread(target=self._write_into, args=arguments, name="checkpoint", daemon=True).start()

    def finished(self) -> Saved | None:
        """Return a save that has ended since the last call; raise what made it fail."""
        if self._running is None or not self._running.done():
            return None
        return self.wait()

    def wait(self) -> Saved | None:
        """Return the save that was running, once it has ended; raise what made it fail."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _write_into(self, running: Future[Saved], step: int, state: dict[str, Any], about: dict[str, Any]) -> None:
        try:
            running.set_result(self._write(step, state, about))
        except BaseException as error:
            running.set_exception(error)

    def _write(self, step: int, state: dict[str, Any], description: dict[str, Any]) -> Saved:
        temporary = self._folder.partial(step)
        if self._world.rank == 0:
            self._folder.begin(step)
        dist.barrier(group=self._group)
        dcp.save(state, checkpoint_id=temporary, process_group=self._group)
        own = [sum_file(path) for path in sorted(temporary.glob(f"__{self._world.rank}_*"))]
        if self._world.rank == 0:
            own.append(sum_file(temporary / ".metadata"))
        everyone: list[list[FileSum]] = [[] for _ in range(self._world.size)]
        dist.all_gather_object(everyone, own, group=self._group)
        final = self._folder.directory / f"step-{step}"
        if self._world.rank == 0:
            final = self._folder.publish(step, description, [each for sums in everyone for each in sums])
        dist.barrier(group=self._group)
        return Saved(step=step, path=final)

    def load(self, engine: Engine, path: Path) -> None:
        """Restore an engine of any plan from a checkpoint; a collective. Raises RefusedError for another job's."""
        saved, expected = describe(path), _description(engine)
        for key in _SHARED:
            # A round trip through JSON makes tuples lists, as they are in what was saved.
            if saved[key] != json.loads(json.dumps(expected[key])):
                raise RefusedError(f"checkpoint {path} has {key} {saved[key]!r}, the job has {expected[key]!r}")
        _fill_optimizer_state(engine)
        state: dict[str, Any] = {}
        for piece in engine.weights.pieces:
            for key, value in _optimizer_values(engine, piece).items():
                _entry(state, engine, key, piece).hold(value, piece.offsets)
        shards = {}
        for name, shard in engine.module.shards.items():
            shards[name] = torch.empty_like(engine.module.gradient(name))
            state[f"model.{name}"] = entry = ShardedEntry(shard.spec.shape)
            entry.hold(shards[name], shard.offsets)
        dcp.load(state, checkpoint_id=path, process_group=self._group)
        for name, value in shards.items():
            engine.weights.set_shard(name, value)
        engine.module.clear_gradients()
        engine.next_step = saved["step"]
        engine.updates = saved["updates"]
        engine.scale.scale, engine.scale.good_steps = saved["loss_scale"], saved["good_steps"]
        for values in engine.optimizer.state.values():
            if "step" in values:
                values["step"].fill_(float(engine.updates))

    def _owned(self, engine: Engine) -> tuple[Piece, ...]:
        """Return the pieces that this rank writes: all its own under ZeRO-1, else where it holds some atom first."""
        if engine.spec.zero_stage > 0:
            return engine.weights.pieces
        rank, shards = self._world.rank, engine.module.shards
        first = {
            atom.parameter
            for atom in self._atoms
            if atom.holders[0] == rank and atom.parameter in shards and _inside(atom, shards[atom.parameter])
        }
        return tuple(piece for piece in engine.weights.pieces if piece.parameter in first)


def _inside(atom: Atom, shard: Shard) -> bool:
    return shard.start <= atom.start and atom.end <= shard.end


def _description(engine: Engine) -> dict[str, Any]:
    training = engine.spec.training
    # Where the first weights came from no longer matters.
    model = engine.spec.model
    return {
        "format": _FORMAT,
        "step": engine.next_step,
        "updates": engine.updates,
        "loss_scale": engine.scale.scale,
        "good_steps": engine.scale.good_steps,
        "samples": engine.next_step * training.global_batch_size,
        "model": dataclasses.asdict(dataclasses.replace(model, weights=None)),
        "optimizer": training.optimizer,
        "sequence_length": training.sequence_length,
        "global_batch_size": training.global_batch_size,
        "seed": training.seed,
        "run": engine.spec.run,
        "generation": engine.spec.generation,
        "plan_hash": engine.spec.plan_hash,
    }


def _optimizer_values(engine: Engine, piece: Piece) -> dict[str, Tensor]:
    """Return the optimizer's tensors of a piece's shape by key, which leaves out the step number."""
    state = engine.optimizer.state[piece.value]
    return {
        f"optimizer.{piece.parameter}.{key}": value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0
    }


def _entry(state: dict[str, Any], engine: Engine, key: str, piece: Piece) -> ShardedEntry:
    return state.setdefault(key, ShardedEntry(engine.module.shards[piece.parameter].spec.shape))


def _fill_optimizer_state(engine: Engine) -> None:
    """Create the optimizer's state, which torch does at the first step only."""
    for piece in engine.weights.pieces:
        state = engine.optimizer.state[piece.value]
        zeros = torch.zeros_like(piece.value, requires_grad=False)
        if isinstance(engine.optimizer, torch.optim.SGD):
            state["momentum_buffer"] = zeros
        else:
            state["step"] = torch.zeros((), dtype=torch.float32, device=zeros.device)
            state["exp_avg"], state["exp_avg_sq"] = zeros, zeros.clone()
