"""The planner's view of a scenario: tables and links that the search needs repeatedly, computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.catalog import providers
from sailor_cloud.errors import DataError
from sailor_cloud.model.document import Ground, Rejected
from sailor_cloud.model.plan import Recompute
from sailor_cloud.network import Link, Place
from sailor_cloud.planner.space.candidates import Candidates, Pool, rejected_offer
from sailor_cloud.planner.space.effort import Deadline
from sailor_cloud.simulator import (
    Held,
    NodeRate,
    Scenario,
    StageMemoryTable,
    StageTable,
    States,
    boundary_pairs,
    boundary_s,
    egress_usd_per_byte,
    node_usd_per_hour,
    stage_table,
    stage_tables,
    tp_problem,
)
from sailor_cloud.simulator.engines import Selective

Floats = NDArray[np.float64]

# The largest rounding error, in bytes, of memory that grows with microbatches in flight.
_ROUNDED = 4
# Microbatch sizes that are computed together: large ones differ little from their neighbours.
SIZES = (*range(1, 33), *range(36, 65, 4))
# Large ones are not needed if the small ones do not fit.
_TOGETHER = (SIZES[:4], SIZES[4:16], SIZES[16:])


class Seat(NamedTuple):
    """The kind of a stage's place: `tp` devices of a node of a pool; equal `node` means the same node of a pipeline."""

    pool: int
    tp: int
    node: int


@dataclass(slots=True)
class Stages:
    """All stages [first, end) of one kind of seats at one microbatch size.

    Shape [kinds, layers + 1, layers + 1] each; `kinds` are the kinds of recomputation, least first. `compute_s`: their
    seconds. `most`: the most microbatches in flight that fit in memory. A stage has the first kind that fits.
    """

    kinds: tuple[Recompute, ...]
    compute_s: Floats
    most: Floats
    _known: dict[int, Floats] = field(default_factory=dict)
    _distinct: dict[tuple[int, ...], Floats] = field(default_factory=dict)

    def seconds(self, in_flight: int) -> Floats:
        """Return the seconds of all stages, infinite if `in_flight` microbatches do not fit in memory."""
        if in_flight not in self._known:
            fits = self.most >= in_flight
            # More microbatches exclude more stages, so equal counts mean the same stages.
            key = tuple(np.count_nonzero(fits, axis=(1, 2)).tolist())
            if key not in self._distinct:
                found = np.full(fits.shape[1:], np.inf)
                for there, seconds in zip(fits[::-1], self.compute_s[::-1], strict=True):
                    found[there] = seconds[there]
                self._distinct[key] = found
            self._known[in_flight] = self._distinct[key]
        return self._known[in_flight]

    def of(self, span: tuple[int, int], in_flight: int) -> tuple[Recompute, float] | None:
        """Return what one stage recomputes, and its seconds; None if it does not fit."""
        for number, kind in enumerate(self.kinds):
            if self.most[number][span] >= in_flight:
                return kind, float(self.compute_s[number][span])
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sized:
    """All stages of one kind of seats at some microbatch sizes, in the order of np.triu_indices.

    `seconds`, `held` and `more`, the memory of each microbatch in flight: shape [sizes, kinds, stages]. `limits`: the
    available bytes, shape [sizes].
    """

    memory: StageMemoryTable
    limits: NDArray[np.int64]
    seconds: Floats
    held: Held
    more: Floats


@dataclass(slots=True)
class Known:
    """Cached data about the offers of one job, for all spaces over them; pools by their number in the first space.

    Keys contain the ZeRO stage if the value depends on it. `searches`: data of searches by name.
    """

    tables: dict[tuple[str, int, int, Recompute, int], StageTable] = field(default_factory=dict)
    stages: dict[tuple[str, int, int, int, int], Stages] = field(default_factory=dict)
    sized: dict[tuple[str, int, tuple[int, ...]], _Sized] = field(default_factory=dict)
    states: dict[tuple[str, int, int, int], States] = field(default_factory=dict)
    links: dict[tuple[int, int, bool, int, int], Link] = field(default_factory=dict)
    boundaries: dict[tuple[int, int, int, int, bool, int, int], Floats] = field(default_factory=dict)
    over_links: dict[tuple[Link, Link], dict[int, Floats]] = field(default_factory=dict)
    usd_per_byte: dict[tuple[str, str], float] = field(default_factory=dict)
    egress_usd: dict[tuple[int, int], Floats] = field(default_factory=dict)
    searches: dict[str, Any] = field(default_factory=dict)
    deadline: Deadline = field(default_factory=Deadline)
    # Gets each draft with its space if a caller keeps the incumbents or shows improvements.
    record: Callable[[Any, Any], None] | None = None


@dataclass(slots=True)
class Space:
    """Everything that is known about stages, cuts and nodes before a plan is composed.

    `numbers`: those of its pools in the first space that `known` was made for. `even_layers`: the stages of a pipeline
    hold equal numbers of layers, up to one. `even_batches`: all pipelines share their cut and microbatch size, and
    their numbers of microbatches differ by one at most.
    """

    scenario: Scenario
    candidates: Candidates
    tp_degrees: tuple[tuple[int, ...], ...]
    rates: tuple[NodeRate, ...]
    zero_stage: int = 0
    known: Known = field(default_factory=Known)
    numbers: tuple[int, ...] = ()
    even_layers: bool = False
    even_batches: bool = False
    # Data that searches of this space keep for the next target, by name.
    remembered: dict[str, Any] = field(default_factory=dict)
    # The same for data about given pipelines and layouts, which even layers and batches do not change.
    evaluated: dict[str, Any] = field(default_factory=dict)
    pools: tuple[Pool, ...] = field(init=False)
    # The bytes of a message between pipelines.
    bucket_bytes: float = field(init=False)
    # Whether all ranks share the cores of one machine.
    on_this_machine: bool = field(init=False)

    def __post_init__(self) -> None:
        self.pools = self.candidates.pools
        self.bucket_bytes = self.scenario.bucket_bytes(self.zero_stage)
        together = all(providers.of(pool.offer.provider).on_this_machine for pool in self.pools)
        self.on_this_machine = self.scenario.machine is not None and together
        self.numbers = self.numbers or tuple(range(len(self.pools)))

    @property
    def layers(self) -> int:
        return self.scenario.decoder.layers

    @property
    def batch(self) -> int:
        return self.scenario.job.training.global_batch_size

    @property
    def by_offer(self) -> dict[tuple[str, int], int]:
        """The number of each pool by its offer and row, in the order of pools."""
        if "by offer" not in self.remembered:
            self.remembered["by offer"] = {(pool.offer.id, pool.row): n for n, pool in enumerate(self.pools)}
        found: dict[tuple[str, int], int] = self.remembered["by offer"]
        return found

    def part(self, kept: list[int], *, zero_stage: int) -> Space:
        """Return the space over some of the pools; the same arguments return the same object, which shares `known`."""
        parts: dict[tuple[tuple[int, ...], int], Space] = self.evaluated.setdefault("parts", {})
        key = (tuple(kept), zero_stage)
        if key not in parts:
            parts[key] = Space(
                scenario=self.scenario,
                candidates=replace(self.candidates, pools=tuple(self.pools[index] for index in kept)),
                tp_degrees=tuple(self.tp_degrees[index] for index in kept),
                rates=tuple(self.rates[index] for index in kept),
                zero_stage=zero_stage,
                known=self.known,
                numbers=tuple(self.numbers[index] for index in kept),
            )
        return parts[key].restricted(even_layers=self.even_layers, even_batches=self.even_batches)

    def share_tables(self, other: Space) -> None:
        """Use the tables of another space with the same model and training; its pools may be others."""
        own, theirs = self.known, other.known
        own.tables, own.stages, own.sized, own.states = theirs.tables, theirs.stages, theirs.sized, theirs.states
        own.over_links, own.usd_per_byte = theirs.over_links, theirs.usd_per_byte

    def at(self, zero_stage: int) -> Space:
        """Return the same space with all plans at a ZeRO stage."""
        if zero_stage == self.zero_stage:
            return self
        return self.part(list(range(len(self.pools))), zero_stage=zero_stage)

    def restricted(self, *, even_layers: bool = False, even_batches: bool = False) -> Space:
        """Return the space of plans with even layers or batches; the same arguments return the same object."""
        flags = (even_layers or self.even_layers, even_batches or self.even_batches)
        if flags == (self.even_layers, self.even_batches):
            return self
        kept: dict[tuple[bool, bool], Space] = self.remembered.setdefault("restricted", {})
        if flags not in kept:
            kept[flags] = replace(self, even_layers=flags[0], even_batches=flags[1], remembered={})
        return kept[flags]

    def lengths(self, stages: int) -> tuple[int, int]:
        """Return the least and the largest number of layers of a stage in a pipeline of `stages` stages."""
        return (self.layers // stages, -(-self.layers // stages)) if self.even_layers else (1, self.layers - stages + 1)

    def allows(self, cut: Sequence[int]) -> bool:
        """Return whether a pipeline may have this cut."""
        least, most = self.lengths(len(cut) - 1)
        return all(least <= end - first <= most for first, end in pairwise(cut))

    def clouds_of(self, pools: Iterable[int]) -> frozenset[str]:
        """Return the providers of some pools."""
        return frozenset(self.pools[pool].offer.provider for pool in pools)

    def keeps_clouds_apart(self, pipelines: Iterable[Iterable[int]]) -> bool:
        """Return whether pipelines, each by its pools, may train together.

        Zones that exchange weights rarely may be on several clouds, but no cut is between two clouds.
        """
        if self.scenario.job.training.sync_every is None:
            return True
        return all(len(self.clouds_of(pools)) == 1 for pools in pipelines)

    @property
    def kinds(self) -> tuple[Recompute, ...]:
        """What stages may recompute, least first; selective recomputation of other engines is not searched."""
        engine = self.scenario.engine
        some = engine.selective is Selective.BLOCKS
        return tuple(kind for kind in engine.recompute if some or kind is not Recompute.SELECTIVE)

    def table(self, pool: int, tp: int, microbatch_size: int, *, recompute: Recompute = Recompute.NONE) -> StageTable:
        """Return the stage table of a pool's accelerator."""
        accelerator = self.pools[pool].accelerator.name
        key = (accelerator, tp, microbatch_size, recompute, self.zero_stage)
        # A key is hashed in Python, so it is looked up once.
        found = self.known.tables.get(key)
        if found is None:
            self.known.deadline.check()
            kinds = dict.fromkeys((recompute, *self.kinds))
            tables = stage_tables(
                self.scenario,
                accelerator,
                tp=tp,
                microbatch_size=microbatch_size,
                kinds=tuple(kinds),
                zero_stage=self.zero_stage,
            )
            self.known.tables |= {(*key[:3], kind, self.zero_stage): table for kind, table in tables.items()}
            found = tables[recompute]
        return found

    def cores(self, nodes: int) -> float:
        """Return how many cores the ranks of a plan on `nodes` nodes share; infinite unless all run on one machine."""
        return self.scenario.profiles.free_cores(nodes) if self.on_this_machine else np.inf

    def stages_s(self, seat: Seat, microbatch_size: int, *, in_flight: int, replicas: int) -> Floats:
        """Return the compute seconds of every stage [first, end), shape [layers + 1, layers + 1].

        Infinite if a stage does not fit in memory with any recomputation. Numbers of microbatches in flight with the
        same memory decisions share one array.
        """
        return self.stages(seat, microbatch_size, replicas).seconds(in_flight)

    def stages(self, seat: Seat, microbatch_size: int, replicas: int) -> Stages:
        """Return all stages of one kind of seats, for one of `replicas` pipelines."""
        key = (self.pools[seat.pool].accelerator.name, seat.tp, microbatch_size, replicas, self.zero_stage)
        if key not in self.known.stages:
            self.known.deadline.check()
            self.known.stages[key] = self._stages(seat, microbatch_size, replicas)
        return self.known.stages[key]

    def _stages(self, seat: Seat, microbatch_size: int, replicas: int) -> Stages:
        sized = self._sized(seat, (microbatch_size,))
        most = np.zeros((len(self.kinds), self.layers + 1, self.layers + 1))
        most[:, *self._spans] = self._most(sized, self._states(seat, replicas), sized.held, sized.more)[0]
        seconds = np.full(most.shape, np.inf)
        seconds[:, *self._spans] = sized.seconds[0]
        return Stages(self.kinds, seconds, most)

    def seconds_by_size(self, seat: Seat, span: tuple[int, int], held: int, replicas: int) -> Floats:
        """Return the compute seconds of a stage that holds `held` microbatches at once, by their size.

        The sizes are those of SIZES, up to the largest one that fits.
        """
        first, end = span
        stage = first * self.layers - first * (first - 1) // 2 + end - first - 1
        found = [np.empty(0)]
        for sizes in _TOGETHER:
            there = tuple(size for size in sizes if size <= self.batch)
            if not there:
                break
            sized = self._sized(seat, there)
            states = self._states(seat, replicas).of(stage)
            most = self._most(sized, states, sized.held.of(stage), sized.more[..., stage])
            fits = most >= held
            fitting = int(fits.any(axis=1).cumprod().sum())
            found.append(sized.seconds[np.arange(fitting), fits.argmax(axis=1)[:fitting], stage])
            if fitting < len(sizes):
                break
        return np.concatenate(found)

    @property
    def _spans(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The stages [first, end), in the order of arrays over all of them."""
        if "spans" not in self.remembered:
            self.remembered["spans"] = np.triu_indices(self.layers + 1, 1)
        first, end = self.remembered["spans"]
        return first, end

    def _states(self, seat: Seat, replicas: int) -> States:
        key = (self.pools[seat.pool].accelerator.name, seat.tp, replicas, self.zero_stage)
        if key not in self.known.states:
            self.known.states[key] = self.table(seat.pool, seat.tp, 1).memory.states(*self._spans, replicas)
        return self.known.states[key]

    def _most(self, sized: _Sized, states: States, held: Held, more: Floats) -> Floats:
        """Return the most microbatches in flight that fit in memory; shape as of `more`."""
        needed = sized.memory.sum_bytes(states, held)
        left = sized.limits.reshape(-1, *[1] * (np.ndim(needed) - 1)) - needed
        return np.asarray(np.where(left >= 0, np.floor(left / more) + 1.0, 0.0))

    def _sized(self, seat: Seat, sizes: tuple[int, ...]) -> _Sized:
        """Return the time and memory of all stages of one kind of seats at some microbatch sizes, at any ZeRO stage."""
        key = (self.pools[seat.pool].accelerator.name, seat.tp, sizes)
        if key not in self.known.sized:
            tables = [[self.table(seat.pool, seat.tp, size, recompute=kind) for kind in self.kinds] for size in sizes]
            held = [[table.memory.held(*self._spans) for table in each] for each in tables]
            more = [[table.memory.activation_bytes(*self._spans) for table in each] for each in tables]
            self.known.sized[key] = _Sized(
                memory=tables[0][0].memory,
                limits=np.array([each[0].limit_bytes - _ROUNDED for each in tables]),
                seconds=np.array(
                    [
                        [table.compute_s(*self._spans) for table in each] + 2.0 * each[0].handing_s(*self._spans)
                        for each in tables
                    ]
                ),
                held=Held(
                    np.array([[one.activations for one in each] for each in held]),
                    np.array([[each[0].passed] for each in held]),
                ),
                more=np.maximum(more, 1e-9),
            )
        return self.known.sized[key]

    def link(self, src: int, dst: int, *, same_node: bool, pairs: int, flows: int = 1) -> Link:
        """Return the connection between nodes of two pools, or inside one node; `flows` share the network card."""
        key = (self.numbers[src], self.numbers[dst], same_node, pairs, flows)
        if key not in self.known.links:
            self.known.links[key] = self.scenario.link(
                self._place(src, "a"), self._place(dst, "a" if same_node else "b"), pairs=pairs, flows=flows
            )
        return self.known.links[key]

    def boundary(self, src: Seat, dst: Seat, microbatch_size: int, *, flows: int = 1) -> Floats:
        """Return the seconds of one microbatch's tensors over a cut, for every cut; shape [layers + 1].

        `flows` such cuts share a network card.
        """
        same_node = src.pool == dst.pool and src.node == dst.node
        ends = (self.numbers[src.pool], src.tp, self.numbers[dst.pool], dst.tp)
        key = (*ends, same_node, microbatch_size, flows)
        if key not in self.known.boundaries:
            pairs = boundary_pairs(src.tp, dst.tp)
            there, back = (
                self.scenario.stage_link(
                    self.link(*ends, same_node=same_node, pairs=pairs, flows=flows),
                    same_node=same_node,
                )
                for ends in ((src.pool, dst.pool), (dst.pool, src.pool))
            )
            self.known.boundaries[key] = self._over(there, back, src, dst, microbatch_size)
        return self.known.boundaries[key]

    def _over(self, there: Link, back: Link, src: Seat, dst: Seat, microbatch_size: int) -> Floats:
        """Return `boundary` over two links, computed once for all zones with equal links and all powers of two."""
        key = (there, back)
        known = self.known.over_links.setdefault(key, {})
        if microbatch_size not in known:
            powers = [2**power for power in range(self.batch.bit_length())]
            sizes = powers if microbatch_size in powers else [microbatch_size]
            # A sample's tensors are the same on all accelerators.
            tensor = self.table(src.pool, src.tp, 1).boundary_bytes * np.array(sizes)[:, None]
            engine = self.scenario.engine
            seconds = boundary_s(there, back, tensor, engine=engine)
            known |= zip(sizes, seconds, strict=True)
        return known[microbatch_size]

    def usd_per_byte(self, src: int, dst: int) -> float:
        """Return the price of moving a byte between the zones of two pools."""
        zones = self.pools[src].offer.zone, self.pools[dst].offer.zone
        if zones[0] == zones[1]:
            return 0.0
        if zones not in self.known.usd_per_byte:
            self.known.usd_per_byte[zones] = egress_usd_per_byte(*zones, self.scenario)
        return self.known.usd_per_byte[zones]

    def cut_usd_per_sample(self, src: Seat, dst: Seat) -> Floats:
        """Return the USD of egress of one sample's tensors over a cut, for every cut; shape [layers + 1]."""
        key = (self.numbers[src.pool], self.numbers[dst.pool])
        if key not in self.known.egress_usd:
            tensor = self.table(src.pool, src.tp, 1).boundary_bytes
            both = self.usd_per_byte(src.pool, dst.pool) + self.usd_per_byte(dst.pool, src.pool)
            self.known.egress_usd[key] = np.asarray(tensor * both)
        return self.known.egress_usd[key]

    def card_bytes_per_s(self, pool: int) -> float:
        """Return the rate of the network card of a pool's nodes, zero if it is unknown."""
        instance = self.scenario.network.instance_of(self._place(pool, ""))
        return 0.0 if instance is None else instance.baseline_bytes_per_s

    def _place(self, pool: int, node: str) -> Place:
        offer = self.pools[pool].offer
        return Place(zone=offer.zone, node=node, accelerator=offer.accelerator, instance_type=offer.instance_type)


def build(scenario: Scenario, candidates: Candidates) -> tuple[Space, tuple[Rejected, ...]]:
    """Return the space over the candidates with complete data, and the candidates without it."""
    rejected: list[Rejected] = []
    kept: list[Pool] = []
    rates: list[NodeRate] = []
    degrees: list[tuple[int, ...]] = []
    missing: set[str] = set()
    profiled: set[str] = set()
    for pool in candidates.pools:
        name = pool.accelerator.name
        if name in missing:
            continue
        try:
            rate = node_usd_per_hour(pool.offer, scenario)
        except DataError as error:
            rejected.append(rejected_offer(pool.offer, str(error), Ground.PRICE))
            continue
        tps = tuple(tp for tp in range(1, pool.devices + 1) if tp_problem(scenario.decoder, tp) is None)
        try:
            if name not in profiled:
                stage_table(scenario, name, tp=tps[0], microbatch_size=1)
                profiled.add(name)
        except DataError as error:
            missing.add(name)
            rejected.append(Rejected(what=name, why=str(error), ground=Ground.PROFILE))
            continue
        kept.append(pool)
        rates.append(rate)
        degrees.append(tps)
    space = Space(
        scenario=scenario,
        candidates=replace(candidates, pools=tuple(kept)),
        tp_degrees=tuple(degrees),
        rates=tuple(rates),
        even_batches=scenario.engine.uniform,
    )
    return space, tuple(rejected)
