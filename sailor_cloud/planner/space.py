"""The planner's view of a scenario: tables and links that the search asks for again and again, kept once built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import DataError
from sailor_cloud.model.document import Rejected
from sailor_cloud.network import Link, Place
from sailor_cloud.planner.candidates import Candidates, Pool
from sailor_cloud.simulator import (
    NodeRate,
    Scenario,
    StageTable,
    boundary_pairs,
    boundary_s,
    boundary_wire_bytes,
    egress_usd_per_byte,
    node_usd_per_hour,
    stage_table,
    tp_problem,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """A stage's kind of place: `tp` devices of a node of a pool; equal `node` means the same node of a pipeline."""

    pool: int
    tp: int
    node: int


@dataclass(slots=True)
class Space:
    """Everything that can be said about stages, cuts and nodes before a plan is put together."""

    scenario: Scenario
    candidates: Candidates
    tp_degrees: tuple[tuple[int, ...], ...]
    rates: tuple[NodeRate, ...]
    zero_stage: int = 0
    _tables: dict[tuple[str, int, int, bool], StageTable] = field(default_factory=dict)
    _links: dict[tuple[int, int, bool, int, int], Link] = field(default_factory=dict)
    _boundaries: dict[tuple[int, int, int, int, bool, int, int], Floats] = field(default_factory=dict)
    _stages: dict[tuple[str, int, int, int, int], Floats] = field(default_factory=dict)
    # What searches of this space keep for the next target; each under a name of its own.
    remembered: dict[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        return self.scenario.decoder.layers

    @property
    def batch(self) -> int:
        return self.scenario.job.training.global_batch_size

    @property
    def pools(self) -> tuple[Pool, ...]:
        return self.candidates.pools

    def part(self, kept: list[int], *, zero_stage: int) -> Space:
        """Return the space over some of the pools; what is known of stages by accelerator is known there, too."""
        alike = zero_stage == self.zero_stage
        return Space(
            scenario=self.scenario,
            candidates=replace(self.candidates, pools=tuple(self.pools[index] for index in kept)),
            tp_degrees=tuple(self.tp_degrees[index] for index in kept),
            rates=tuple(self.rates[index] for index in kept),
            zero_stage=zero_stage,
            _tables=self._tables if alike else {},
            _stages=self._stages if alike else {},
        )

    def table(self, pool: int, tp: int, microbatch_size: int, *, recompute: bool) -> StageTable:
        """Return the stage table of a pool's accelerator."""
        accelerator = self.pools[pool].accelerator.name
        key = (accelerator, tp, microbatch_size, recompute)
        if key not in self._tables:
            self._tables[key] = stage_table(
                self.scenario,
                accelerator,
                tp=tp,
                microbatch_size=microbatch_size,
                recompute=recompute,
                zero_stage=self.zero_stage,
            )
        return self._tables[key]

    def stages_s(self, seat: Seat, microbatch_size: int, *, in_flight: int, replicas: int) -> Floats:
        """Return the compute seconds of every stage [first, end), shape [layers + 1, layers + 1].

        Infinite where a stage fits in memory neither with its activations kept nor with them computed again. The same
        array stands for all numbers of microbatches in flight among which memory makes no difference.
        """
        key = (self.pools[seat.pool].accelerator.name, seat.tp, microbatch_size, in_flight, replicas)
        if key not in self._stages:
            first, end = np.triu_indices(self.layers + 1, 1)
            seconds = np.full(len(first), np.inf)
            for recompute in (True, False):
                table = self.table(seat.pool, seat.tp, microbatch_size, recompute=recompute)
                used = table.memory_bytes(first, end, in_flight=in_flight, replicas=replicas)
                seconds = np.where(used <= table.limit_bytes, table.compute_s(first, end), seconds)
            found = np.full((self.layers + 1, self.layers + 1), np.inf)
            found[first, end] = seconds
            before = self._stages.get((*key[:3], in_flight - 1, replicas))
            self._stages[key] = before if before is not None and np.array_equal(before, found) else found
        return self._stages[key]

    def link(self, src: int, dst: int, *, same_node: bool, pairs: int, flows: int = 1) -> Link:
        """Return the connection between nodes of two pools, or inside one node; `flows` share the network card."""
        key = (src, dst, same_node, pairs, flows)
        if key not in self._links:
            self._links[key] = self.scenario.link(
                self._place(src, "a"), self._place(dst, "a" if same_node else "b"), pairs=pairs, flows=flows
            )
        return self._links[key]

    def boundary(self, src: Seat, dst: Seat, microbatch_size: int, *, flows: int = 1) -> Floats:
        """Return the seconds that one microbatch's tensors take over a cut, for every cut; shape [layers + 1].

        `flows` such cuts share a network card.
        """
        same_node = src.pool == dst.pool and src.node == dst.node
        key = (src.pool, src.tp, dst.pool, dst.tp, same_node, microbatch_size, flows)
        if key not in self._boundaries:
            pairs = boundary_pairs(src.tp, dst.tp)
            table = self.table(src.pool, src.tp, microbatch_size, recompute=False)
            self._boundaries[key] = np.asarray(
                boundary_s(
                    self.link(src.pool, dst.pool, same_node=same_node, pairs=pairs, flows=flows),
                    self.link(dst.pool, src.pool, same_node=same_node, pairs=pairs, flows=flows),
                    table.boundary_bytes,
                    src_tp=src.tp,
                    dst_tp=dst.tp,
                    execution=self.scenario.execution,
                )
            )
        return self._boundaries[key]

    def usd_per_byte(self, src: int, dst: int) -> float:
        """Return the price of moving a byte between the zones of two pools."""
        zones = self.pools[src].offer.zone, self.pools[dst].offer.zone
        return 0.0 if zones[0] == zones[1] else egress_usd_per_byte(*zones, self.scenario)

    def cut_usd_per_sample(self, src: Seat, dst: Seat) -> Floats:
        """Return the USD of egress of one sample's tensors over a cut, for every cut; shape [layers + 1]."""
        tensor = self.table(src.pool, src.tp, 1, recompute=False).boundary_bytes
        forward, backward = boundary_wire_bytes(tensor, src_tp=src.tp, dst_tp=dst.tp, execution=self.scenario.execution)
        there, back = self.usd_per_byte(src.pool, dst.pool), self.usd_per_byte(dst.pool, src.pool)
        return np.asarray(forward * there + backward * back)

    def _place(self, pool: int, node: str) -> Place:
        offer = self.pools[pool].offer
        return Place(zone=offer.zone, node=node, accelerator=offer.accelerator, instance_type=offer.instance_type)


def build(scenario: Scenario, candidates: Candidates) -> tuple[Space, tuple[Rejected, ...]]:
    """Return the space over the candidates that have all data, and what fell out for want of it."""
    rejected: list[Rejected] = []
    kept: list[Pool] = []
    rates: list[NodeRate] = []
    degrees: list[tuple[int, ...]] = []
    missing: set[str] = set()
    for pool in candidates.pools:
        name = pool.accelerator.name
        if name in missing:
            continue
        try:
            rate = node_usd_per_hour(pool.offer, scenario)
        except DataError as error:
            rejected.append(Rejected(what=pool.offer.id, why=str(error)))
            continue
        tps = tuple(tp for tp in range(1, pool.devices + 1) if tp_problem(scenario.decoder, tp) is None)
        try:
            stage_table(scenario, name, tp=tps[0], microbatch_size=1)
        except DataError as error:
            missing.add(name)
            rejected.append(Rejected(what=name, why=str(error)))
            continue
        kept.append(pool)
        rates.append(rate)
        degrees.append(tps)
    space = Space(
        scenario=scenario,
        candidates=replace(candidates, pools=tuple(kept)),
        tp_degrees=tuple(degrees),
        rates=tuple(rates),
    )
    return space, tuple(rejected)
