"""A checkpoint is loaded into the memory that training has in any case, and nothing is drawn that it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import engine as engines
from sailor_runtime.training.checkpoint import checkpoint
from sailor_runtime.training.checkpoint.checkpoint import Checkpoints, Saved
from sailor_runtime.training.checkpoint.shards import ShardedEntry
from sailor_runtime.training.data.samples import open_samples
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.optimizer.precision import precision_of
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.process_groups import World

CPU = Device(torch_device=torch.device("cpu"), kernel_runs=1)


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return run_spec([(12, 1, [(0, 6, 1)])], directory=tmp_path)


@pytest.fixture
def world(spec: RunSpec) -> Iterator[World]:
    made = World(spec, 0, layout.atoms(spec), backend="gloo")
    yield made
    made.close()


def engine_of(spec: RunSpec, world: World, precision: str, **options: Any) -> Engine:
    place, atoms = layout.places(spec)[0], layout.atoms(spec)
    return Engine(spec, place, world, atoms, open_samples(spec), CPU, precision_of(precision), **options)


def values_of(engine: Engine) -> list[torch.Tensor]:
    states = [engine.optimizer.state[piece.value] for piece in engine.weights.pieces]
    moments = [state[name] for state in states for name in sorted(state)]
    return [*engine.module.parameters.values(), *(piece.value for piece in engine.weights.pieces), *moments]


@pytest.mark.parametrize(("precision", "zero_stage"), [("fp32", 0), ("bf16", 0), ("bf16", 1)])
def test_loading_needs_no_more_memory_than_training_and_no_first_weights(
    spec, world, monkeypatch, precision, zero_stage
):
    spec = replace(spec, zero_stage=zero_stage)
    saves = Checkpoints(spec.checkpoint.directory, 1, world, layout.atoms(spec))
    trained = engine_of(spec, world, precision)
    for _ in range(2):
        trained.step()
    saves.begin(trained)
    assert isinstance(saves.wait(), Saved)

    drawn: list[str] = []
    monkeypatch.setattr(engines, "first_weights", lambda *_: lambda spec, dtype: drawn.append(spec.name))
    fresh = engine_of(spec, world, precision, restored=True)
    places: set[int] = set()

    def load(state: dict[str, Any], **options: Any) -> None:
        entries = [entry for entry in state.values() if isinstance(entry, ShardedEntry)]
        places.update(part.untyped_storage().data_ptr() for entry in entries for part in entry.parts.values())
        dcp.load(state, **options)

    monkeypatch.setattr(checkpoint, "dcp", _Patched(load))
    saves.load(fresh, saves.latest()[0])
    assert drawn == []
    assert places <= {each.untyped_storage().data_ptr() for each in values_of(fresh)}
    for found, expected in zip(values_of(fresh), values_of(trained), strict=True):
        assert torch.equal(found, expected)
    assert fresh.step().loss == trained.step().loss


class _Patched:
    """torch.distributed.checkpoint with another `load`."""

    def __init__(self, load: Any) -> None:
        self.load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(dcp, name)


def test_a_rank_says_that_it_lives_while_first_weights_are_made(spec, world):
    signs: list[None] = []
    engine = engine_of(spec, world, "fp32", alive=lambda: signs.append(None))
    assert len(signs) == len(engine.module.shards)


def test_frozen_weights_are_made_although_a_checkpoint_follows_since_it_lacks_them(spec, world):
    engine = engine_of(spec, world, "fp32")
    frozen = "transformer.ln_f.weight"
    engine.module.parameters[frozen].requires_grad_(False)
    made: list[str] = []

    def first(spec: Any, dtype: torch.dtype) -> torch.Tensor:
        made.append(spec.name)
        return torch.full(spec.shape, 3.0, dtype=dtype)

    engine.weights.fill(first, lambda: None, only_frozen=True)
    assert made == [frozen]
    assert engine.module.parameters[frozen].unique().tolist() == [3.0]


@pytest.mark.parametrize("scarce", [False, True])
def test_a_save_makes_no_copies_where_memory_is_scarce_and_training_waits(spec, world, monkeypatch, scarce):
    needed: list[int] = []
    monkeypatch.setattr(checkpoint, "fits", lambda size: needed.append(size) or not scarce)
    engine = engine_of(spec, world, "fp32")
    engine.step()
    saves = Checkpoints(spec.checkpoint.directory, 1, world, layout.atoms(spec))
    saves.begin(engine)
    assert saves.holds_training == scarce
    assert isinstance(saves.wait(), Saved)
    assert not saves.holds_training
    assert needed == [3 * sum(piece.value.nbytes for piece in engine.weights.pieces)]
    assert bool(saves._staging._kept) != scarce
    other = engine_of(spec, world, "fp32", restored=True)
    saves.load(other, saves.latest()[0])
    assert other.step().loss == engine.step().loss
