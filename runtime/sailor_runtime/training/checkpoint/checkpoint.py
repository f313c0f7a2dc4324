"""Checkpoints that any plan can load: saved atomically, the newest named by `latest`."""

from __future__ import annotations

import dataclasses
import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from sailor_runtime.object_store import StoreError, is_url
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.checkpoint.bucket import CheckpointStore
from sailor_runtime.training.checkpoint.description import check_description, description
from sailor_runtime.training.checkpoint.folder import CheckpointFolder
from sailor_runtime.training.checkpoint.shards import ShardedEntry
from sailor_runtime.training.checkpoint.staging import Staging, fits
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.optimizer import optimizer
from sailor_runtime.training.optimizer.weights import Piece
from sailor_runtime.training.pipeline.devices import use_in_thread
from sailor_runtime.training.pipeline.layout import Atom
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.stage import Shard

_T = TypeVar("_T")

# Before the name of a buffer that forward passes have changed.
BUFFER = "buffer."
SAVE_TIMEOUT = datetime.timedelta(minutes=30)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A complete checkpoint; `path` may be a URL. `written` are the number of files and bytes of each rank."""

    step: int
    path: str
    written: tuple[tuple[int, int], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """A checkpoint that could not be written; earlier ones are unchanged."""

    step: int
    reason: str


def open_folder(directory: str | Path, keep: int = 1) -> CheckpointFolder | CheckpointStore:
    """Return the checkpoints in a folder or under a URL. Raises StoreError if nothing serves the URL."""
    if is_url(str(directory)):
        return CheckpointStore(str(directory), keep)
    return CheckpointFolder(Path(directory), keep)


class Checkpoints:
    """The checkpoints of one run in one folder, or under one URL, that every rank reaches under the same name.

    Tensors are copied to memory when a save begins. A thread writes them, over a separate group, while training
    continues. If the copies do not fit into some node's memory, training waits instead. A failure on one rank fails
    all, so that no rank waits for another that has given up.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int,
        world: World,
        atoms: tuple[Atom, ...],
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """`data` identifies the training data; None: any."""
        self._data = data
        self._damaged: list[str] = []
        self._world = world
        self._atoms = atoms
        self._group = dist.new_group(timeout=SAVE_TIMEOUT, backend="gloo")
        self._running: Future[Saved | Unsaved] | None = None
        self._staging = Staging()
        # Known from the first save on.
        self._scarce: bool | None = None
        self.directory = str(directory)
        try:
            self._folder = open_folder(directory, keep)
        except StoreError as error:
            raise RefusedError(str(error)) from error

    def latest(self) -> tuple[str | None, list[str]]:
        """Return the newest undamaged checkpoint and what is wrong with newer ones and with `latest`, on all ranks.

        Raises RefusedError if the folder or store is unreachable: to start from the beginning would lose its content.
        """
        names, fault = self._on_rank_0(lambda: (self._folder.newest_first(), self._folder.latest_fault()))
        wrong = [] if fault is None else [fault]
        for name in names:
            found = self._on_all_ranks(lambda name=name: self._folder.damage(name, self._world.rank, self._world.size))
            faults = [fault for fault in found if fault is not None]
            if not faults:
                return name, wrong
            wrong.append(faults[0])
            self._damaged.append(name)
        return None, wrong

    def check(self) -> None:
        """Raise RefusedError if nothing can be saved, before any step is trained."""
        self._on_rank_0(self._folder.check)

    def location(self, name: str) -> str:
        return self._folder.location(name)

    def _on_all_ranks(self, action: Callable[[], _T]) -> list[_T]:
        """Return each rank's result of `action`; raise RefusedError on all of them if it fails on one."""
        outcome: tuple[str | None, Any]
        try:
            outcome = (None, action())
        except (OSError, ValueError, KeyError, StoreError) as error:
            outcome = (f"{error}" if isinstance(error, StoreError) else f"{self.directory}: {error}", None)
        outcomes: list[Any] = [None] * self._world.size
        dist.all_gather_object(outcomes, outcome, group=self._group)
        for reason, _ in outcomes:
            if reason is not None:
                raise RefusedError(f"checkpoints: {reason}")
        return [value for _, value in outcomes]

    def _on_rank_0(self, action: Callable[[], _T]) -> _T:
        """Return rank 0's result of `action` on all ranks."""
        result: Any = self._on_all_ranks(lambda: action() if self._world.rank == 0 else None)[0]
        return result

    def begin(self, engine: Engine, notes: Mapping[str, Any] | None = None) -> None:
        """Begin to save weights, optimizer state and data position; a collective. Waits for a save that still runs.

        notes: are saved with them, and returned by `load`.
        """
        self.wait()
        owned = self._owned(engine)
        if self._scarce is None:
            self._scarce = self._is_scarce(engine, owned)
            self._staging.scarce = self._scarce
        state: dict[str, Any] = {}
        for piece in owned:
            for key, value in self._values(engine, piece).items():
                # The copy lets training change the weights meanwhile.
                copy = self._staging.copy((key, piece.region), value)
                entry, shard = _entry(state, engine, key, piece), engine.module.shards[piece.parameter]
                for offsets, part in piece.boxes(shard, copy):
                    entry.hold(part, offsets)
        engine.check_buffers()
        if engine.keeps_buffers and engine.module.buffers is not None:
            state |= {f"{BUFFER}{name}": value for name, value in engine.module.buffers.changed().items()}
        self._running = running = Future[Saved | Unsaved]()
        about = description(engine, data=self._data, notes=notes or {})
        arguments = (running, engine.device, engine.next_step, state, about)
        # A daemon, so that a failing rank can end while its save waits for lost ranks.
        threading.Thread(target=self._write_into, args=arguments, name="checkpoint", daemon=True).start()

    @property
    def holds_training(self) -> bool:
        """Whether training must wait for the save that runs: a node lacks the memory for copies."""
        return bool(self._scarce) and self._running is not None

    def _is_scarce(self, engine: Engine, owned: Sequence[Piece]) -> bool:
        """Whether copies of all that its ranks save do not fit into some node; a collective."""
        needed = sum(value.nbytes for piece in owned for value in self._values(engine, piece).values())
        node = engine.spec.node_of(self._world.rank).id
        everyone = self._on_all_ranks(lambda: (node, needed))
        here = sum(each for other, each in everyone if other == node)
        return not all(self._on_all_ranks(lambda: fits(here)))

    def _values(self, engine: Engine, piece: Piece) -> dict[str, Tensor]:
        """Return what is saved of a piece, by key."""
        values = {f"model.{piece.parameter}": piece.value, **_optimizer_values(engine, piece)}
        values = {_of_island(engine.island, key): value for key, value in values.items()}
        if engine.outer is not None and engine.island == 0:
            values |= engine.outer.state(piece)
        return values

    @property
    def running(self) -> bool:
        """Whether a save is still being written."""
        return self._running is not None and not self._running.done()

    def finished(self) -> Saved | Unsaved | None:
        """Return a save that has ended since the last call."""
        if self._running is None or not self._running.done():
            return None
        return self.wait()

    def wait(self) -> Saved | Unsaved | None:
        """Return the save that was running, once it has ended."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def _write_into(
        self,
        running: Future[Saved | Unsaved],
        device: torch.device,
        step: int,
        state: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        try:
            # torch's writer asks for the current stream.
            use_in_thread(device)
            self._staging.wait()
            running.set_result(self._write(step, state, about))
        # Whatever prevents a save from ending, training continues; the requester decides how long to wait.
        except (Exception, dcp.CheckpointException) as error:
            running.set_result(Unsaved(step=step, reason=_reason(error)))

    def _write(self, step: int, state: dict[str, Any], description: dict[str, Any]) -> Saved:
        self._on_rank_0(lambda: self._folder.begin(step, description["run"]))
        dcp.save(state, storage_writer=self._folder.writer(step), process_group=self._group)
        everyone = self._on_all_ranks(lambda: self._folder.written(step, self._world.rank))
        sums = [each for own in everyone for each in own]
        name = self._on_rank_0(lambda: self._folder.publish(step, description, sums, self._damaged))
        self._damaged = []
        written = tuple((len(own), sum(each.size for each in own)) for own in everyone)
        return Saved(step=step, path=self.location(name), written=written)

    def describe(self, spec: RunSpec, name: str) -> dict[str, Any]:
        """Return the description of a checkpoint; a collective.

        Raises RefusedError for a checkpoint of another job or other data.
        """
        saved: dict[str, Any] = self._on_rank_0(lambda: self._folder.describe(name))
        check_description(saved, spec, self._data, where=self.location(name))
        return saved

    def load(self, engine: Engine, name: str) -> dict[str, Any]:
        """Restore an engine of any plan from a checkpoint and return its notes; a collective.

        Raises RefusedError for a checkpoint of another job, or an unreadable one.
        """
        saved = self.describe(engine.spec, name)
        self._load_tensors(engine, name, saved.get("islands", 1))
        engine.next_step = saved["step"]
        engine.updates = saved["updates"]
        engine.scale.scale, engine.scale.good_steps = saved["loss_scale"], saved["good_steps"]
        optimizer.set_updates(engine.optimizer, engine.updates)
        return dict(saved.get("notes", {}))

    def _load_tensors(self, engine: Engine, name: str, islands: int) -> None:
        """Load an engine from the checkpoint of `islands` islands; a new island continues from one of these."""
        island = engine.island % islands
        met = engine.outer if islands > 1 else None
        optimizer.fill_state(engine.optimizer, [piece.value for piece in engine.weights.pieces])
        state: dict[str, Any] = {}
        for piece in engine.weights.pieces:
            own = {f"model.{piece.parameter}": piece.value, **_optimizer_values(engine, piece)}
            values = {_of_island(island, key): value for key, value in own.items()}
            for key, value in (values | ({} if met is None else met.state(piece))).items():
                entry, shard = _entry(state, engine, key, piece), engine.module.shards[piece.parameter]
                for offsets, part in piece.boxes(shard, value):
                    entry.hold(part, offsets)
        reader = self._folder.reader(name)
        buffers = saved_buffers(reader.read_metadata()) if engine.module.buffers is not None else {}
        try:
            dcp.load(state | buffers, storage_reader=reader, process_group=self._group)
        except dcp.CheckpointException as error:
            raise RefusedError(f"checkpoint {self.location(name)} can't be read: {_reason(error)}") from error
        if engine.module.buffers is not None:
            engine.module.buffers.restore({key.removeprefix(BUFFER): value for key, value in buffers.items()})
        engine.weights.publish()
        engine.weights.gather()
        if engine.outer is not None and met is None:
            engine.outer.begin()
        engine.module.clear_gradients()

    def _owned(self, engine: Engine) -> tuple[Piece, ...]:
        """Return the pieces that this rank writes: under ZeRO its own, else those of which it holds an atom first."""
        if engine.spec.zero_stage > 0:
            return engine.weights.pieces
        rank, shards = self._world.rank, engine.module.shards
        first = {
            atom.parameter
            for atom in self._atoms
            if atom.holders[0] == rank and atom.parameter in shards and _inside(atom, shards[atom.parameter])
        }
        return tuple(piece for piece in engine.weights.pieces if piece.parameter in first)


def saved_buffers(metadata: Metadata) -> dict[str, Tensor]:
    """Return an empty tensor for each buffer in a checkpoint, by its key."""
    return {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.state_dict_metadata.items()
        if key.startswith(BUFFER) and isinstance(entry, TensorStorageMetadata)
    }


def _reason(error: BaseException) -> str:
    """Return the first failure, on any rank."""
    if isinstance(error, dcp.CheckpointException) and error.failures:
        failure: Any = error.failures[min(error.failures)]
        error = failure[0] if isinstance(failure, tuple) else failure
    return str(error).removeprefix("checkpoints: ") or type(error).__name__


def _inside(atom: Atom, shard: Shard) -> bool:
    return shard.place(atom.start, atom.end) is not None


def _optimizer_values(engine: Engine, piece: Piece) -> dict[str, Tensor]:
    """Return the optimizer's tensors of a piece's shape by key, without the step number."""
    state = engine.optimizer.state[piece.value]
    return {
        f"optimizer.{piece.parameter}.{key}": value
        for key, value in state.items()
        if isinstance(value, Tensor) and value.dim() > 0
    }


def _of_island(island: int, key: str) -> str:
    """Return the key under which an island saves a value that differs between islands."""
    return key if island == 0 else f"island.{island}.{key}"


def _entry(state: dict[str, Any], engine: Engine, key: str, piece: Piece) -> ShardedEntry:
    return state.setdefault(key, ShardedEntry(engine.module.shards[piece.parameter].spec.shape))
