"""The inputs of published planners, derived from ours: nodes with their devices, layer times, memory and links."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import ProfileMissingError, RequestError
from sailor_cloud.model.plan import Node, Pipeline, Plan, Recompute, Stage
from sailor_cloud.network import Link, Place
from sailor_cloud.planner.space.candidates import Candidates, Pool, collect
from sailor_cloud.simulator import (
    Scenario,
    StageTable,
    boundary_pairs,
    boundary_s,
    pipeline_s,
    ring_s,
    stage_table,
    tp_problem,
)
from sailor_cloud.simulator.engines import StagePlace
from sailor_cloud.simulator.scenario import place_of

Floats = NDArray[np.float64]

# Published planners use tensor parallelism inside a node, in powers of two.
TP_DEGREES = (1, 2, 4, 8)
# Sizes of nodes that are tried one after the other.
MOST_SIZES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node that could be bought."""

    name: str
    pool: Pool

    @property
    def accelerator(self) -> str:
        return self.pool.offer.accelerator

    @property
    def zone(self) -> str:
        return self.pool.offer.zone

    @property
    def devices(self) -> int:
        return self.pool.devices

    @property
    def place(self) -> Place:
        return place_of(self.pool.offer, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Neighbouring devices of one machine, as many as a stage's degree of tensor parallelism."""

    machine: Machine
    first: int
    tp: int

    @property
    def place(self) -> StagePlace:
        return StagePlace(self.machine.accelerator, self.machine.zone, self.tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The layers [first, end) on a slot."""

    first: int
    end: int
    slot: Slot
    recompute: Recompute = Recompute.NONE


@dataclass(slots=True, kw_only=True)
class Cluster:
    """The nodes of a job in the order of ranks, with the times of computing and sending on them.

    For every accelerator in every zone, it has one kind of node, in its cheapest market. It has all nodes that the job
    and the account allow.
    """

    scenario: Scenario
    machines: tuple[Machine, ...]
    _tables: dict[tuple[str, int, int, Recompute, int], StageTable | None] = field(default_factory=dict)
    _links: dict[tuple[Place, Place, int], Link] = field(default_factory=dict)
    _cuts: dict[tuple[StagePlace, StagePlace, int], tuple[Floats, Floats]] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        return self.scenario.decoder.layers

    @property
    def batch(self) -> int:
        return self.scenario.job.training.global_batch_size

    @property
    def devices(self) -> int:
        return sum(machine.devices for machine in self.machines)

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(sorted({machine.accelerator for machine in self.machines}))

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(sorted({machine.zone for machine in self.machines}))

    def part(self, machines: Iterable[Machine]) -> Cluster:
        """Return the cluster of some machines; cached data about accelerators and links is shared."""
        return replace(self, machines=tuple(machines))

    def of_one_accelerator(self) -> Iterator[Cluster]:
        """Yield the cluster of each accelerator in each zone, for planners that model one kind of GPU and no zones."""
        key = _kind
        for _, members in groupby(sorted(self.machines, key=key), key=key):
            yield self.part(members)

    def microbatch_sizes(self) -> tuple[int, ...]:
        """Return the powers of two up to 64 that divide the global batch."""
        return tuple(size for size in (1, 2, 4, 8, 16, 32, 64) if self.batch % size == 0)

    def tp_degrees(self) -> tuple[int, ...]:
        """Return the degrees that the model and every node allow."""
        least = min(machine.devices for machine in self.machines)
        return tuple(
            tp
            for tp in TP_DEGREES
            if all(machine.devices % tp == 0 for machine in self.machines)
            and tp <= least
            and tp_problem(self.scenario.decoder, tp) is None
        )

    def table(
        self,
        accelerator: str,
        tp: int,
        microbatch_size: int,
        recompute: Recompute = Recompute.NONE,
        zero_stage: int = 0,
    ) -> StageTable | None:
        """Return the costs of stages; None if there is no data for such a stage."""
        key = (accelerator, tp, microbatch_size, recompute, zero_stage)
        if key not in self._tables:
            try:
                table = stage_table(
                    self.scenario,
                    accelerator,
                    tp=tp,
                    microbatch_size=microbatch_size,
                    recompute=recompute,
                    zero_stage=zero_stage,
                    spread=True,
                )
                self._tables[key] = table if table.limit_bytes > 0 else None
            except (ProfileMissingError, RequestError):
                self._tables[key] = None
        return self._tables[key]

    def layer_s(self, table: StageTable) -> Floats:
        """Return forward plus backward of one microbatch by layer, shape [layers]."""
        return np.diff(table.forward_prefix_s + table.backward_prefix_s)

    def link(self, src: Machine, dst: Machine, pairs: int = 1) -> Link:
        key = (src.place, dst.place, pairs)
        if key not in self._links:
            self._links[key] = self.scenario.link(src.place, dst.place, pairs=pairs)
        return self._links[key]

    def transfer_s(self, src: Slot, dst: Slot, table: StageTable, layer: int = 1) -> float:
        """Return the seconds of one microbatch's activation and gradient over the cut before a layer."""
        formulas = self.scenario.engine.formulas
        if formulas is not None:
            key = (src.place, dst.place, table.microbatch_size)
            if key not in self._cuts:
                self._cuts[key] = formulas.cuts_s(self.scenario, table.microbatch_size, src.place, dst.place)
            return float(sum(seconds[layer] for seconds in self._cuts[key]))
        pairs = boundary_pairs(src.tp, dst.tp)
        there, back = self.link(src.machine, dst.machine, pairs), self.link(dst.machine, src.machine, pairs)
        nbytes = float(table.boundary_bytes[layer])
        return float(boundary_s(there, back, nbytes, engine=self.scenario.engine))

    def all_reduce_s(self, nbytes: float, members: Sequence[Slot], replicas: int | None = None) -> float:
        """Return the seconds of a ring over the slots, or over `replicas` members like these, at its slowest link."""
        count = len(members) if replicas is None else replicas
        if len(members) < 2 or count < 2:
            return 0.0
        pairs, formulas = min(slot.tp for slot in members), self.scenario.engine.formulas
        if formulas is not None:
            ends = {(a.place.at(1), b.place.at(1)) for a, b in _hops(members)}
            return max(formulas.ring_s(nbytes / formulas.shards(pairs), count, *hop) for hop in sorted(ends))
        hops = {(a.machine.pool, b.machine.pool, a.machine is b.machine): (a, b) for a, b in _hops(members)}
        slowest = max(
            (self.link(a.machine, b.machine, pairs) for a, b in hops.values()),
            key=lambda link: link.transfer_s(1e6),
        )
        return float(ring_s(nbytes, count, slowest, bucket_bytes=self.scenario.engine.bucket_bytes))

    def pipeline_s(self, compute_s: Sequence[float], hops_s: Sequence[float], microbatches: int) -> float:
        """Return the seconds of a pipeline's schedule as in its simulation; `hops_s`: both directions, by cut."""
        engine = self.scenario.engine
        if engine.formulas is not None:
            busy = [own + hop for own, hop in zip(compute_s, [*hops_s, 0.0], strict=True)]
            return (microbatches - 1) * max(busy) + sum(busy)
        return float(pipeline_s(np.array(compute_s), np.array(hops_s), microbatches, engine=engine))

    def slots(self, tp: int) -> tuple[Slot, ...]:
        """Return the devices in groups of `tp`, node by node."""
        return tuple(
            Slot(machine=machine, first=first, tp=tp)
            for machine in self.machines
            for first in range(0, machine.devices - tp + 1, tp)
        )

    def plan(
        self,
        pipelines: Sequence[tuple[int, Sequence[Cut]]],
        *,
        zero_stage: int = 0,
        counts: Sequence[int] | None = None,
    ) -> Plan:
        """Return the plan of pipelines, each with its microbatch size and its stages.

        `counts`: their numbers of microbatches; by default, equal shares of the batch. Raises RequestError if the batch
        does not divide into whole microbatches, at least one per pipeline.
        """
        counts = counts or shares(self.batch, [size for size, _ in pipelines])
        used = {cut.slot.machine.name: cut.slot.machine for _, cuts in pipelines for cut in cuts}
        nodes = tuple(
            Node(id=machine.name, offer=machine.pool.offer.id, devices=machine.devices)
            for machine in self.machines
            if machine.name in used
        )
        return Plan(
            zero_stage=zero_stage,
            precision=self.scenario.job.training.precision,
            nodes=nodes,
            pipelines=tuple(
                Pipeline(id=p, microbatch_size=size, microbatches=count, stages=tuple(map(_stage, cuts)))
                for p, ((size, cuts), count) in enumerate(zip(pipelines, counts, strict=True))
            ),
        )


def shares(batch: int, sizes: Sequence[int], weights: Sequence[float] | None = None) -> list[int]:
    """Return the numbers of microbatches, in proportion to `weights`, with which pipelines of these sizes do the batch.

    Raises RequestError if whole microbatches, at least one per pipeline, can't add up to the batch.
    """
    wanted = list(weights) if weights is not None else [1.0] * len(sizes)
    total = sum(wanted)
    counts = [max(1, int(batch * weight / total / size)) for weight, size in zip(wanted, sizes, strict=True)]
    left = batch - sum(count * size for count, size in zip(counts, sizes, strict=True))
    while left > 0:
        fitting = [p for p, size in enumerate(sizes) if size <= left]
        if not fitting:
            break
        # The pipeline that would end first gets one more.
        p = min(fitting, key=lambda p: ((counts[p] + 1) * sizes[p] / wanted[p], p))
        counts[p] += 1
        left -= sizes[p]
    if left != 0:
        raise RequestError(f"microbatches of {sorted(set(sizes))} in {len(sizes)} pipelines make no batch of {batch}")
    return counts


def clusters_of(scenario: Scenario, candidates: Candidates | None = None) -> tuple[Cluster, ...]:
    """Return the clusters that a job's resources make up, by accelerator and zone.

    Each has the largest nodes up to one of the sizes for sale; at most `MOST_SIZES` clusters. The one with most usable
    devices comes first, on ties the one with larger nodes. If no node can be used, the only cluster is empty.
    """
    found = candidates or collect(scenario.job, scenario.catalog)
    rows: dict[int, dict[int, Pool]] = {}
    for pool in sorted(found.pools, key=_usd_per_device_hour):
        rows.setdefault(pool.row, {}).setdefault(pool.devices, pool)
    ordered = sorted(rows, key=lambda row: (found.rows[row].accelerator, found.rows[row].zone))
    clusters = []
    for size in sorted({pool.devices for pool in found.pools} or {0}, reverse=True):
        machines: list[Machine] = []
        for row in ordered:
            pool = rows[row][max((each for each in rows[row] if each <= size), default=min(rows[row]))]
            machines += [Machine(name=f"n{len(machines) + i}", pool=pool) for i in range(pool.max_nodes)]
        most = scenario.job.constraints.max_nodes
        clusters.append(Cluster(scenario=scenario, machines=tuple(machines[:most])))
    return tuple(sorted(clusters, key=lambda cluster: -cluster.devices)[:MOST_SIZES])


def even_cuts(layers: int, stages: int) -> list[int]:
    """Return the bounds of stages with equal numbers of layers; the last ones hold one more if these don't divide."""
    each, more = divmod(layers, stages)
    sizes = [each] * (stages - more) + [each + 1] * more
    return [0, *np.cumsum(sizes).tolist()]


def balanced_cuts(layer_s: Floats, stages: int) -> list[int]:
    """Return the bounds of stages whose slowest one is as fast as possible; `layer_s` has shape [layers], or [stages,
    layers] if speeds differ by stage."""
    times = np.broadcast_to(layer_s, (stages, layer_s.shape[-1]))
    layers = times.shape[1]
    prefix = np.concatenate([np.zeros((stages, 1)), np.cumsum(times, axis=1)], axis=1)
    best = np.full((stages + 1, layers + 1), np.inf)
    best[0, 0] = 0.0
    before = np.zeros((stages + 1, layers + 1), dtype=np.int64)
    for stage in range(1, stages + 1):
        for end in range(stage, layers - (stages - stage) + 1):
            own = prefix[stage - 1, end] - prefix[stage - 1, :end]
            slowest = np.maximum(best[stage - 1, :end], own)
            before[stage, end] = int(slowest.argmin())
            best[stage, end] = slowest[before[stage, end]]
    bounds = [layers]
    for stage in range(stages, 0, -1):
        bounds.append(int(before[stage, bounds[-1]]))
    return bounds[::-1]


def _stage(cut: Cut) -> Stage:
    devices = tuple(range(cut.slot.first, cut.slot.first + cut.slot.tp))
    return Stage(
        first_layer=cut.first,
        end_layer=cut.end,
        node=cut.slot.machine.name,
        devices=devices,
        recompute=cut.recompute,
    )


def _kind(machine: Machine) -> tuple[str, str]:
    return machine.accelerator, machine.zone


def _usd_per_device_hour(pool: Pool) -> tuple[float, str]:
    return pool.offer.usd_per_hour / pool.devices, pool.offer.id


def _hops(members: Sequence[Slot]) -> Iterator[tuple[Slot, Slot]]:
    ordered = sorted(members, key=lambda slot: (slot.machine.zone, slot.machine.name))
    yield from zip(ordered, [*ordered[1:], ordered[0]], strict=True)
