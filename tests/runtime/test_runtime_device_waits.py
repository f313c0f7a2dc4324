"""A rank that waits for its whole device also waits for receives that it has posted; no rank may then wait for itself.

Threads stand in for ranks, and messages between them for NCCL.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from factories.run_specs import run_spec
from sailor_runtime.spec import INTERLEAVED, ONE_F_ONE_B, ZERO_BUBBLE, RunSpec
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.executor import Executor
from sailor_runtime.training.pipeline.schedule import Kind, passes, receives_ahead
from sailor_runtime.training.pipeline.spans import Clock, Spans
from sailor_runtime.training.pipeline.stage import StageModule
from sailor_runtime.training.pipeline.transfers import Transfers

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
MICROBATCHES, TIMEOUT_S = 4, 20.0
PLANS = {
    ONE_F_ONE_B: [(0, 3, 1), (3, 6, 1)],
    ZERO_BUBBLE: [(0, 3, 1), (3, 6, 1)],
    INTERLEAVED: [(0, 2, 1, (3, 4)), (2, 3, 1, (4, 6))],
}


class _Sent:
    def wait(self) -> None:
        pass

    def is_completed(self) -> bool:
        return True


@dataclass
class _Receive:
    network: _Network
    key: tuple[int, int, int]
    number: int
    into: torch.Tensor
    arrived: bool = False

    def wait(self) -> None:
        self.network.wait_for([self])


@dataclass
class _Network:
    """Messages between ranks; a rank is the thread that runs it."""

    ranks: threading.local = field(default_factory=threading.local)
    changed: threading.Condition = field(default_factory=threading.Condition)
    sent: dict[Any, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    posted: dict[int, list[_Receive]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def isend(self, value: torch.Tensor, to: int, *, group: Any, tag: int) -> _Sent:
        with self.changed:
            self.sent[self.ranks.own, to, tag].append(value.clone())
            self.changed.notify_all()
        return _Sent()

    def irecv(self, into: torch.Tensor, source: int, *, group: Any, tag: int) -> _Receive:
        key = (source, self.ranks.own, tag)
        receive = _Receive(self, key, self.counts[key], into)
        self.counts[key] += 1
        self.posted[self.ranks.own].append(receive)
        return receive

    def wait_for(self, receives: list[_Receive]) -> None:
        def arrived() -> bool:
            return all(each.number < len(self.sent[each.key]) for each in receives)

        with self.changed:
            if not self.changed.wait_for(arrived, TIMEOUT_S):
                raise TimeoutError(f"rank {self.ranks.own} waits for {[each.key for each in receives]}")
            for each in receives:
                if not each.arrived:
                    each.into.copy_(self.sent[each.key][each.number])
                    each.arrived = True

    def wait_for_device(self) -> None:
        """Wait for every kernel of this rank's device, also for those of posted receives."""
        self.wait_for(self.posted[self.ranks.own])


class _Event:
    """A CUDA event whose stream is this thread."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.s = 0.0

    def record(self) -> None:
        self.s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.s - self.s)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> _Network:
    made = _Network()
    monkeypatch.setattr(dist, "isend", made.isend)
    monkeypatch.setattr(dist, "irecv", made.irecv)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: made.wait_for_device())
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    return made


def plan(schedule: str, directory: Any) -> RunSpec:
    return run_spec([(1, MICROBATCHES, PLANS[schedule])], directory=directory, pipeline_schedule=schedule)


class _Rank:
    """One rank of a plan of one pipeline."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        [self.pipeline] = spec.pipelines
        self.spec, self.rank = spec, rank
        parallel, device = TensorParallel(None, 1, 0), Device(torch_device=CPU, kernel_runs=1)
        self.module = StageModule(spec.model, self.pipeline.stages[rank], parallel, device, torch.float32)
        with torch.no_grad():
            for parameter in self.module.parameters.values():
                parameter.fill_(0.02)
        transfers = [
            Transfers(self.pipeline, number, parallel, ((None, None),), CPU)
            for number, (stage, _) in enumerate(self.pipeline.virtual_stages)
            if stage == rank
        ]
        self.executor = Executor(self.pipeline, rank, spec.pipeline_schedule, self.module, transfers, Spans(CPU))

    def run(self) -> float:
        length = self.spec.training.sequence_length
        tokens = torch.arange(length).view(1, -1) % self.spec.model.vocab_size
        dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.zeros(1))
        given = Microbatch(tokens=tokens, targets=tokens, weight=1.0, dropout=dropout)
        shape = (1, length, self.spec.model.hidden_size)
        return float(self.executor.run(lambda number, with_tokens: given, shape, torch.float32))


def run_all(network: _Network, ranks: list[_Rank]) -> float:
    """Run an iteration of all ranks and return the sum of their losses."""

    def one(rank: _Rank) -> float:
        network.ranks.own = rank.rank
        return rank.run()

    with ThreadPoolExecutor(len(ranks)) as threads:
        return sum(threads.map(one, ranks))


@pytest.mark.parametrize("schedule", PLANS)
def test_layers_are_timed_while_receives_are_posted_ahead(network, tmp_path, schedule):
    spec = plan(schedule, tmp_path)
    ranks = [_Rank(spec, rank) for rank in range(2)]
    for rank in ranks:
        # As on a CUDA device.
        rank.module._device, rank.module._clock = Device(torch_device=CUDA, kernel_runs=1), Clock(CUDA)
        rank.module.times_layers = True
    assert run_all(network, ranks) > 0.0
    for rank in ranks:
        forward_s, backward_s = rank.module.layer_times()
        assert forward_s.keys() == backward_s.keys() == set(rank.module.layers)
        assert all(seconds > 0.0 for seconds in [*forward_s.values(), *backward_s.values()])


@pytest.mark.parametrize("schedule", PLANS)
@pytest.mark.parametrize("waiting", [0, 1])
def test_a_rank_may_wait_for_its_device_in_every_pass(network, tmp_path, schedule, waiting, monkeypatch):
    """A device also waits when it runs short of memory, or loads a kernel."""
    spec = plan(schedule, tmp_path)
    ranks = [_Rank(spec, rank) for rank in range(2)]
    module = ranks[waiting].module

    def waits(compute, *given, **named):
        network.wait_for_device()
        return compute(*given, **named)

    for name in ("forward", "backward", "backward_input", "backward_weights"):
        monkeypatch.setattr(module, name, functools.partial(waits, getattr(module, name)))
    assert run_all(network, ranks) > 0.0


SHAPES = [
    *[
        (schedule, m, stages, 1)
        for schedule in (ONE_F_ONE_B, ZERO_BUBBLE)
        for stages in (2, 3, 5)
        for m in (1, 2, 4, 9)
    ],
    *[(INTERLEAVED, m, stages, ranges) for stages in (2, 3) for ranges in (2, 3) for m in (stages, 2 * stages)],
]


@pytest.mark.parametrize(("schedule", "microbatches", "stages", "ranges"), SHAPES)
def test_no_receive_is_posted_before_a_local_pass_that_its_tensor_depends_on(schedule, microbatches, stages, ranges):
    orders = [passes(schedule, microbatches, stages, stage, ranges) for stage in range(stages)]
    for stage in range(stages):
        posted = set()
        for number, ahead in enumerate(receives_ahead(orders, stage, ranges)):
            posted |= {(number, *key) for key in ahead}
        for number, chunk, direction in posted:
            # The stage never reaches pass `number`, so what others can compute must include this tensor.
            computed = _computed_without(orders, stage, number, ranges)
            kinds = {Kind.FORWARD} if direction > 0 else {Kind.BACKWARD, Kind.INPUT}
            due = next(each for each in orders[stage][number + 1 :] if each.chunk == chunk and each.kind in kinds)
            assert (direction, chunk * stages + stage - direction, due.microbatch) in computed


def _computed_without(orders, stage, number, ranges):
    """Return what all stages can compute if one of them stops before a pass."""
    orders = [order[:number] if each == stage else order for each, order in enumerate(orders)]
    at, computed = [0] * len(orders), set()
    while True:
        before = list(at)
        for each, order in enumerate(orders):
            if at[each] == len(order):
                continue
            step = order[at[each]]
            direction = 1 if step.kind is Kind.FORWARD else -1
            own = step.chunk * len(orders) + each
            needed = (direction, own - direction, step.microbatch)
            if step.kind is Kind.WEIGHTS or needed in computed or not 0 <= own - direction < len(orders) * ranges:
                at[each] += 1
                if step.kind is not Kind.WEIGHTS:
                    computed.add((direction, own, step.microbatch))
        if at == before:
            return computed
