"""The possible error of an iteration: every unknown with its share of the time, and their joint distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations_with_replacement, pairwise

from sailor_cloud.model.document import Correction, Cost, ErrorShare, Totals, TotalsQuantile, Waits
from sailor_cloud.model.job import Constraints
from sailor_cloud.network import Link
from sailor_cloud.simulator.layout import Layout, Seat
from sailor_cloud.simulator.timing.closed_form import boundary_pairs
from sailor_cloud.simulator.timing.iteration import Iteration
from sailor_cloud.simulator.timing.sync import SyncGroup, ring_hops
from sailor_cloud.workload import learned_of
from sailor_cloud.workload.error_model import ErrorDistribution, ErrorModel

# The probabilities for which a document has figures.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_PROFILE = "'sailor-cloud profile JOB' on that accelerator"
_PROFILE_TP = "'sailor-cloud profile JOB --tp' on that accelerator"
_LINK = "'sailor-cloud profile JOB --link-to ADDRESS:PORT' between such nodes"
_RUN = "a finished run of this job and 'sailor-cloud history --measurements'"


class Kind(StrEnum):
    """What a run of a plan tells about other runs: its layers, its network, or nothing (chance)."""

    LAYERS = "layers"
    NETWORK = "network"
    CHANCE = "chance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """One inexact quantity. `half` is its median error, as a logarithm of the iteration."""

    kind: Kind
    what: str
    half: float
    measured: bool
    measurement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncertainty:
    """The unknowns of a prediction, largest share first; errors of different things are independent.

    `accelerator`: the one with the least certain layers, by the name under which its runs are kept. `zones`: those of
    the least certain link between nodes.
    """

    unknowns: tuple[Unknown, ...]
    distribution: ErrorDistribution
    accelerator: str
    zones: tuple[str, ...]

    def half(self, kind: Kind) -> float:
        """Return the median error of one kind."""
        return math.hypot(*(each.half for each in self.unknowns if each.kind is kind))

    @property
    def shares(self) -> tuple[ErrorShare, ...]:
        """Return every unknown's share of the variance."""
        whole = self.distribution.half**2
        return tuple(
            ErrorShare(
                what=each.what,
                share=each.half**2 / whole,
                error_p50=math.sinh(each.half),
                measured=each.measured,
                measurement=each.measurement,
            )
            for each in self.unknowns
        )


def uncertainty(layout: Layout, iteration: Iteration) -> Uncertainty:
    """Return the possible error of a replayed iteration.

    Every unknown counts with the share of the iteration that the busiest stage spends on it. Bubbles belong to the
    passes and transfers that they wait for. The least certain stage represents all stages, and so for links.
    """
    model = layout.scenario.profiles.errors
    found = [each for each in _unknowns(layout, iteration, model) if each.half > 0.0]
    ordered = tuple(sorted(found, key=lambda each: (-each.half, each.what)))
    hops = [hop for hop in (*_boundary_links(layout), *_rings(layout, iteration)) if hop.zones]
    return Uncertainty(
        unknowns=ordered,
        distribution=model.of(math.hypot(*(each.half for each in ordered))),
        accelerator=learned_of(_least_known_seat(layout).table.accelerator),
        zones=_least_known(hops).zones if hops else (),
    )


def _unknowns(layout: Layout, iteration: Iteration, model: ErrorModel) -> Iterator[Unknown]:
    waits, total = iteration.busiest, iteration.replay_s
    busy = max(waits.compute_s + waits.transfer_s, 1e-300)
    compute, transfer = (_whole(part, busy, waits) / total for part in (waits.compute_s, waits.transfer_s))
    seat = _least_known_seat(layout)
    profiles, part = layout.scenario.profiles, seat.table.accelerator
    left = profiles.own.layers(learned_of(part), layout.plan.precision.value, layout.scenario.decoder.name).left
    exchange = compute * max(each.table.exchange_share for each in layout.seats)
    name, precision = part.name, layout.plan.precision.value
    beyond = f" in microbatches of {seat.table.microbatch_size} (measured up to {seat.table.measured_size})"
    yield Unknown(
        kind=Kind.LAYERS,
        what=f"layers on {name} in {precision}{beyond if _is_beyond(seat) else ''}",
        half=compute * seat.table.error * left,
        measured=seat.table.measured and not _is_beyond(seat),
        measurement=_PROFILE,
    )
    yield Unknown(
        kind=Kind.LAYERS,
        what=f"all-reduces of tensor parallelism on {name}",
        half=exchange * model.exchange * left,
        measured=seat.table.measured,
        measurement=_PROFILE_TP,
    )
    if transfer > 0.0:
        yield _of_link(layout, "transfers", transfer, _boundary_links(layout))
    synced = max(0.0, waits.sync_s) / total
    links = _rings(layout, iteration)
    if links:
        yield _of_link(layout, "all-reduces of gradients", synced, links)
        hidden = max(0.0, _exchanged_s(layout, iteration) / total - synced)
        yield Unknown(
            kind=Kind.NETWORK,
            what="how much of the all-reduces the passes hide",
            half=min(1.0, hidden) * model.overlap,
            measured=True,
            measurement=_RUN,
        )
    if layout.on_machine:
        lasting = max(profiles.lasting_machine_error(seat.table.accelerator) for seat in layout.seats)
        # Half of the variance is systematic, the other half is that of one run.
        for kind, half in ((Kind.LAYERS, lasting * left), (Kind.CHANCE, lasting)):
            what = "this machine" if kind is Kind.LAYERS else "load of this machine"
            yield Unknown(kind=kind, what=what, half=half, measured=True, measurement=_RUN)
    yield Unknown(kind=Kind.CHANCE, what="runs of one plan differ", half=model.repeat, measured=True, measurement=_RUN)


def _whole(part_s: float, busy_s: float, waits: Waits) -> float:
    """Return a part with its share of the bubbles."""
    return part_s + max(0.0, waits.bubble_s) * part_s / busy_s


def _of_link(layout: Layout, what: str, share: float, hops: list[Hop]) -> Unknown:
    hop, profiles = _least_known(hops), layout.scenario.profiles
    half = share * math.hypot(profiles.errors.network, profiles.errors.half_of(hop.link.error))
    left = profiles.own.network(*hop.zones).left if hop.zones else 1.0
    return Unknown(
        kind=Kind.NETWORK,
        what=f"{what} {hop.where}",
        half=half * left,
        measured=hop.link.measured,
        measurement=_LINK,
    )


def _least_known(hops: list[Hop]) -> Hop:
    return max(hops, key=lambda hop: (hop.link.error, hop.link.transfer_s(1e8), hop.where))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A link with words for its place; between nodes also its zones, sorted."""

    where: str
    link: Link
    zones: tuple[str, ...]


def _boundary_links(layout: Layout) -> list[Hop]:
    cuts = (cut for seats in layout.pipelines for cut in pairwise(seats))
    return [_hop(layout, src, dst, boundary_pairs(src.tp, dst.tp)) for src, dst in cuts]


def _rings(layout: Layout, iteration: Iteration) -> list[Hop]:
    """Return the slowest link of each ring, which the others wait for."""
    rings = [hops for group in iteration.groups if (hops := _ring_links(layout, group))]
    return [max(hops, key=lambda hop: (hop.link.transfer_s(1e6), hop.where)) for hops in rings]


def _least_known_seat(layout: Layout) -> Seat:
    return max(layout.seats, key=lambda seat: (seat.table.error, _is_beyond(seat), seat.compute_s))


def _is_beyond(seat: Seat) -> bool:
    """Return whether the microbatches are larger than any that was measured, so that their times are extrapolated."""
    return seat.table.microbatch_size > (seat.table.measured_size or math.inf)


def _ring_links(layout: Layout, group: SyncGroup) -> list[Hop]:
    if len(group.members) < 2 or not group.seconds:
        return []
    return [_hop(layout, src, dst, pairs) for src, dst, pairs in ring_hops(group, layout)]


def _hop(layout: Layout, src: Seat, dst: Seat, pairs: int) -> Hop:
    link = layout.links.between(src.place, dst.place, pairs=pairs)
    if src.place.node is not None and src.place.node == dst.place.node:
        return Hop(where=f"between devices of {src.hardware.instance_type}", link=link, zones=())
    one, other = sorted((src.place.zone, dst.place.zone))
    return Hop(where=f"in {one}" if one == other else f"between {one} and {other}", link=link, zones=(one, other))


def _exchanged_s(layout: Layout, iteration: Iteration) -> float:
    """Return the longest time that a stage exchanges gradients and weights, visible or hidden."""
    taken: dict[tuple[int, int], float] = {}
    for group in iteration.groups:
        for seat in group.members:
            passes = layout.plan.pipelines[seat.pipeline].microbatches * (group.forward_s + group.backward_s)
            key = seat.device
            taken[key] = taken.get(key, 0.0) + group.sum_s + group.gather_s + passes
    return max(taken.values(), default=0.0)


def corrections(layout: Layout) -> tuple[Correction, ...]:
    """Return the corrections by the owner's measurements for a plan's layers, links between nodes and memory."""
    profiles, found, held = layout.scenario.profiles, {}, {}
    if not profiles.own.runs:
        return ()
    precision, model = layout.plan.precision.value, layout.scenario.decoder.name
    for seat in layout.seats:
        part = seat.table.accelerator
        error = math.hypot(seat.table.error, profiles.lasting_machine_error(part))
        found[f"layers on {part.name} in {precision}"] = profiles.own.layers(learned_of(part), precision, model), error
        held[f"stages on {part.name} in {precision}"] = profiles.own.memory(part.name, precision, model)
    places = {seat.place.zone: replace(seat.place, node=None) for seat in layout.seats}
    for src, dst in combinations_with_replacement(sorted(places), 2):
        belief = profiles.own.network(src, dst)
        if belief.runs:
            link = layout.scenario.network.link(places[src], places[dst])
            error = math.hypot(profiles.errors.network, profiles.errors.half_of(link.error))
            found[f"network in {src}" if src == dst else f"network between {src} and {dst}"] = belief, error
    beliefs = [(what, belief, error, "seconds") for what, (belief, error) in sorted(found.items())]
    beliefs += [(what, belief, profiles.errors.memory, "bytes") for what, belief in sorted(held.items())]
    return tuple(
        Correction(what=what, runs=belief.runs, factor=math.exp(error * belief.mean), error_left=belief.left, unit=unit)
        for what, belief, error, unit in beliefs
        if belief.is_informative
    )


def totals(
    constraints: Constraints,
    cost: Cost,
    *,
    fixed_s: float,
    duration_s: float,
    distribution: ErrorDistribution,
    ttl_s: float | None = None,
    waiting_s: float = 0.0,
) -> Totals:
    """Return the distribution of a run's time and money, given the error of its iterations.

    `fixed_s` of the duration do not depend on the iteration, and `waiting_s` of them cost nothing. Hourly costs follow
    the duration. Prices and the number of preemptions are taken as expected.
    """
    assert cost.total_usd is not None, "the job has a number of steps"
    by_hour = sum(line.usd for line in cost.lines if line.unit == "hour")
    iterating_s = duration_s - fixed_s
    usd_per_s = by_hour / (duration_s - waiting_s)

    def at(ratio: float) -> tuple[float, float]:
        more_s = (ratio - 1.0) * iterating_s
        return duration_s + more_s, (cost.total_usd or 0.0) + more_s * usd_per_s

    def within(limit: float | None, figure: float, per_s: float) -> float | None:
        if limit is None:
            return None
        room, slope = limit * (1.0 + 1e-9) - figure, per_s * iterating_s
        return distribution.probability(1.0 + room / slope) if slope else float(room >= 0.0)

    budget = within(constraints.budget_usd, cost.total_usd, usd_per_s)
    deadline, alive = (within(limit, duration_s, 1.0) for limit in (constraints.deadline, ttl_s))
    limited = constraints.budget_usd is not None or constraints.deadline is not None
    chances = [each for each in (budget, deadline, alive) if each is not None]
    quantiles = []
    for probability in QUANTILES:
        seconds, usd = at(distribution.ratio(probability))
        quantiles.append(TotalsQuantile(probability=probability, duration_s=seconds, total_usd=usd))
    return Totals(
        quantiles=tuple(quantiles),
        within_budget=budget,
        within_deadline=deadline,
        within_limits=min(chances) if limited else None,
    )
