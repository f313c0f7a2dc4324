"""Sums of gradients begin while lower layers are still on their way back, in one order on all ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training import layout
from sailor_runtime.training.devices import Device
from sailor_runtime.training.gradients import GradientSum
from sailor_runtime.training.stage import StageModule
from sailor_runtime.training.tensor_parallel import TensorParallel

PLANS = {
    "unequal tp": [(4, 2, [(0, 3, 2), (3, 6, 1)]), (2, 2, [(0, 6, 1)])],
    "unequal depth": [(2, 4, [(0, 2, 1), (2, 4, 1), (4, 6, 1)]), (4, 1, [(0, 6, 1)])],
    "three pipelines": [(2, 2, [(0, 4, 1), (4, 6, 1)]), (2, 2, [(0, 2, 1), (2, 6, 1)]), (2, 2, [(0, 6, 3)])],
}


class _Done:
    def wait(self) -> None:
        pass


@pytest.fixture
def summed(monkeypatch) -> list[tuple[Any, int]]:
    """What was summed, as (group, elements); a group stands for itself by its ranks."""
    found: list[tuple[Any, int]] = []

    def all_reduce(value: torch.Tensor, *, group: Any, async_op: bool) -> _Done:
        assert async_op
        found.append((group, value.numel()))
        return _Done()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    return found


def sums_of(spec: RunSpec, rank: int) -> tuple[GradientSum, StageModule]:
    place = layout.places(spec)[rank]
    stage = spec.pipelines[place.pipeline].stages[place.stage]
    device = Device(torch_device=torch.device("cpu"), kernel_runs=1)
    parallel = TensorParallel(None, len(stage.ranks), place.tp_index)
    module = StageModule(spec.model, stage, parallel, device, torch.float64)
    group = lambda ranks: None if len(ranks) == 1 else ranks  # noqa: E731
    return GradientSum(rank, spec.model, layout.atoms(spec), module, group, bucket_elements=300), module


def test_sums_of_a_layer_begin_once_its_gradients_are_whole_and_tied_weights_wait_for_the_embedding(summed, tmp_path):
    spec = run_spec(PLANS["unequal depth"], directory=tmp_path)
    sums, module = sums_of(spec, 3)
    begun = []
    for layer in reversed(module.layers):
        assert (0, 2, 3) not in [group for group, _ in summed]
        sums.layer_done(layer)
        begun.append(len(summed))
    # A few small parameters wait for more to go with them; the tied weight waits for the embedding.
    assert all(later > earlier for earlier, later in pairwise(begun))
    assert (0, 2, 3) in [group for group, _ in summed]


@pytest.mark.parametrize("name", PLANS)
def test_all_ranks_begin_their_common_sums_in_the_same_order(summed, tmp_path, name):
    spec = run_spec(PLANS[name], directory=tmp_path)
    orders = []
    for rank in range(spec.world_size):
        summed.clear()
        sums, module = sums_of(spec, rank)
        for layer in reversed(module.layers):
            sums.layer_done(layer)
        sums.finish()
        orders.append(list(summed))
    # Who begins a sum, in each rank's order; no two ranks may wait for each other in a circle.
    left = [list(order) for order in orders]
    while any(left):
        ready = [
            order[0][0]
            for rank, order in enumerate(left)
            if order and all(left[other] and left[other][0] == order[0] for other in order[0][0])
        ]
        assert ready, f"no sum can begin: {[order[:1] for order in left]}"
        for rank in ready[0]:
            left[rank].pop(0)


def test_an_iteration_without_microbatches_to_wait_for_starts_anew(summed, tmp_path):
    spec = run_spec(PLANS["unequal depth"], directory=tmp_path)
    sums, _ = sums_of(spec, 3)
    sums.finish()
    first = list(summed)
    sums.clear()
    sums.finish()
    assert summed == [*first, *first]
