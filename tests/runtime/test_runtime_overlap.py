"""Sums of gradients begin while lower layers are still on their way back, in one order on all ranks."""

from __future__ import annotations

import queue
import threading
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist

from factories.run_specs import run_spec
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.optimizer.gradients import GradientAllReduce
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.exchange import BackgroundQueue, Exchange
from sailor_runtime.training.pipeline.stage import StageModule

PLANS = {
    "unequal tp": [(4, 2, [(0, 3, 2), (3, 6, 1)]), (2, 2, [(0, 6, 1)])],
    "unequal depth": [(2, 4, [(0, 2, 1), (2, 4, 1), (4, 6, 1)]), (4, 1, [(0, 6, 1)])],
    "three pipelines": [(2, 2, [(0, 4, 1), (4, 6, 1)]), (2, 2, [(0, 2, 1), (2, 6, 1)]), (2, 2, [(0, 6, 3)])],
}


class _Done:
    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True


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


def sums_of(spec: RunSpec, rank: int) -> tuple[GradientAllReduce, StageModule]:
    place = layout.places(spec)[rank]
    stage = spec.pipelines[place.pipeline].stages[place.stage]
    device = Device(torch_device=torch.device("cpu"), kernel_runs=1)
    parallel = TensorParallel(None, len(stage.ranks), place.tp_index)
    module = StageModule(spec.model, stage, parallel, device, torch.float64)

    def exchange(ranks: tuple[int, ...]) -> Exchange | None:
        return Exchange(ranks, rank, ["a"] * len(ranks), ranks, native=False) if len(ranks) > 1 else None

    background = BackgroundQueue(torch.device("cpu"))
    return GradientAllReduce(
        rank, spec.model, layout.atoms(spec), module, exchange, background, bucket_elements=300
    ), module


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


def test_an_iteration_without_pending_microbatches_starts_over(summed, tmp_path):
    spec = run_spec(PLANS["unequal depth"], directory=tmp_path)
    sums, _ = sums_of(spec, 3)
    sums.finish()
    first = list(summed)
    sums.clear()
    sums.finish()
    assert summed == [*first, *first]


def bytes_of(tensors) -> int:
    """The memory behind some tensors, each storage once."""
    return sum(
        {
            each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors if each.numel()
        }.values()
    )


def test_a_sum_needs_no_copy_of_gradients_that_the_same_ranks_hold_whole(monkeypatch, tmp_path):
    spec = run_spec(PLANS["unequal depth"], directory=tmp_path)
    given: list[torch.Tensor] = []
    monkeypatch.setattr(dist, "all_reduce", lambda value, **_: given.append(value) or _Done())
    sums, module = sums_of(spec, 3)
    gradients = [module.gradient(name) for name in module.parameters]
    sums.finish()
    # Rank 3 shares every layer with some other rank.
    assert sum(value.numel() for value in given) == sum(gradient.numel() for gradient in gradients)
    assert bytes_of([*gradients, *given]) == sum(gradient.nbytes for gradient in gradients)


def test_gradients_cut_differently_elsewhere_are_copied_and_the_copies_freed(monkeypatch, tmp_path):
    spec = run_spec(PLANS["unequal tp"], directory=tmp_path)
    given: list[weakref.ref[torch.Tensor]] = []

    def doubled(value: torch.Tensor, **_: Any) -> _Done:
        value *= 2.0
        given.append(weakref.ref(value))
        return _Done()

    monkeypatch.setattr(dist, "all_reduce", doubled)
    sums, module = sums_of(spec, 3)
    for name in module.parameters:
        module.gradient(name).fill_(1.0)
    sums.finish()
    # Rank 3 holds all layers alone; what it shares with two ranks of another pipeline is added piece by piece.
    for name in module.parameters:
        assert torch.equal(module.gradient(name), torch.full_like(module.gradient(name), 2.0)), name
    flats = [ref for ref in given if ref() is not None]
    assert 0 < len(flats) < len(given)


@pytest.fixture
def native(monkeypatch) -> None:
    """A stand-in of NCCL among threads: collectives of equally long parts only, and messages between two."""
    mail: dict[Any, queue.SimpleQueue[torch.Tensor]] = defaultdict(queue.SimpleQueue)
    held: dict[int, torch.Tensor] = {}
    barrier = threading.Barrier(3, timeout=5.0)

    def swap(self: Exchange, out: Any, come: Any) -> None:
        for rank, number, part in out:
            mail[self._index, rank, number].put(part.clone())
        for rank, number, part in come:
            part.copy_(mail[rank, self._index, number].get(timeout=5.0))

    def all_gather(whole: torch.Tensor, part: torch.Tensor, *, group: int) -> None:
        held[group] = part.clone()
        barrier.wait()
        assert whole.numel() == 3 * part.numel()
        whole.copy_(torch.cat([held[number] for number in range(3)]))
        barrier.wait()

    def reduce_scatter(total: torch.Tensor, whole: torch.Tensor, *, group: int) -> None:
        assert whole.numel() == 3 * total.numel()
        held[group] = whole.clone()
        barrier.wait()
        total.copy_((held[0] + held[1] + held[2]).tensor_split(3)[group])
        barrier.wait()

    monkeypatch.setattr(Exchange, "_swap", swap)
    monkeypatch.setattr(dist, "all_gather_single", all_gather)
    monkeypatch.setattr(dist, "reduce_scatter_single", reduce_scatter)


@pytest.mark.parametrize("length", [6, 7, 2])
@pytest.mark.parametrize("wire", [torch.bfloat16, torch.float32])
def test_sums_by_native_collectives_take_any_length_and_add_up_in_the_format_of_the_gradients(native, wire, length):
    # In bfloat16, 256 + 1 is 256 again, so that adding there loses both ones.
    flats = [torch.full((length,), value) for value in (256.0, 1.0, 1.0)]

    def one(rank: int) -> None:
        Exchange([0, 1, 2], rank, ["a"] * 3, rank, native=True).sum_all(flats[rank], wire)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(one, range(3)))
    assert [flat.tolist() for flat in flats] == [[258.0] * length] * 3
