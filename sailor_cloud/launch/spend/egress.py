"""The cost of traffic between zones: measured bytes of the ranks' connections, at the price of each pair.

Steps since the newest measurement count as those before it. Until the first one the plan's figures apply; the line says
how many steps were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean

from sailor_cloud.errors import MissingPriceError
from sailor_cloud.launch.spend.charges import AS_PLANNED, METERED, planned_charge, total_usd, traffic_charge
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.generation_log import RecordedGeneration
from sailor_cloud.model.document import CostKind, CostLine, PlanDocument
from sailor_cloud.model.parts import part_of, traffic_part
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.units import GB

# From one zone to another.
Pair = tuple[str, str]


def usd_per_step(document: PlanDocument) -> float:
    """Return the planned cost of one iteration's traffic."""
    steps = document.job.training.steps
    return math.fsum(line.usd for line in _lines(document)) / steps if steps else 0.0


def measured_usd_per_step(leg: RecordedGeneration, prices: UsagePrices) -> float:
    """Return the cost of one iteration's traffic in a generation, at least the planned one.

    Leaves out bytes sent before the first step, for checks and measurements that don't recur.
    """
    planned_usd, monitor = usd_per_step(leg.document), leg.monitor
    if not monitor.steps_done:
        return planned_usd
    start = replace(leg, monitor=replace(_start(leg).monitor, iteration_times=[], steps_done=0, journaled=()))
    seen = replace(leg, monitor=replace(monitor, journaled=()))
    usd = total_usd(charges([seen], prices)) - total_usd(charges([start], prices))
    return max(planned_usd, usd / monitor.steps_done)


def charges(legs: Iterable[RecordedGeneration], prices: UsagePrices) -> tuple[LedgerLine, ...]:
    """Return the charges for traffic of all generations, including repeated iterations."""
    return tuple(charge for leg in legs for charge in _of(leg, prices))


def sent_bytes(leg: RecordedGeneration) -> dict[Pair, float]:
    """Return the measured bytes between zones; nothing until every rank has reported."""
    plan = leg.document.plan
    if plan is None or len(leg.monitor.traffic) < _ranks(leg.document):
        return {}
    offers = leg.document.inputs.offers_by_id()
    zones = {node.id: offers[node.offer].zone for node in plan.nodes}
    found: dict[Pair, float] = {}
    for sent in leg.monitor.traffic.values():
        for node, nbytes in sent.by_node.items():
            src, dst = zones.get(sent.node), zones.get(node)
            if src is not None and dst is not None and src != dst:
                found[src, dst] = found.get((src, dst), 0.0) + nbytes
    return found


def _of(leg: RecordedGeneration, prices: UsagePrices) -> Iterator[LedgerLine]:
    steps, done, measured = leg.document.job.training.steps, leg.monitor.steps_done, sent_bytes(leg)
    done += leg.monitor.steps_unseen
    if not steps:
        return
    prefix = f"generation {leg.generation}: " if leg.generation > 1 else ""
    lines = _lines(leg.document)
    by_part, before = _by_part(measured), _start(leg)
    at_start, metered, metered_at_start = _by_part(sent_bytes(before)), _metered(leg), _metered(before)
    for line in lines:
        part = part_of(line)
        reported, sent_gb = metered.get(part, [0]), by_part.get(part, 0.0) / GB
        per_step_gb, since = line.quantity / steps, fmean(reported) - fmean(metered_at_start.get(part, [0]))
        if since > 0.0:
            per_step_gb = (sent_gb - at_start.get(part, 0.0) / GB) / since
        # What a rank has not reported yet is an equal share for each rank.
        quantity = sent_gb + per_step_gb * (done - fmean(reported))
        if quantity:
            yield planned_charge(line, quantity=quantity, prefix=prefix, note=_note(min(reported), done))
    expected = {part_of(line) for line in lines}
    for pair, nbytes in sorted(measured.items()):
        if expected.isdisjoint(_parts(pair)):
            yield from _unplanned(pair, nbytes, lines, prices, prefix)


def _start(leg: RecordedGeneration) -> RecordedGeneration:
    """Return a generation with the first measurement of each rank as its newest."""
    return replace(leg, monitor=replace(leg.monitor, traffic=leg.monitor.traffic_before))


def _by_part(sent: dict[Pair, float]) -> dict[str, float]:
    return {part: nbytes for pair, nbytes in sent.items() for part in _parts(pair)}


def _metered(leg: RecordedGeneration) -> dict[str, list[int]]:
    """Return the number of iterations that each sender has reported, by the bill's names of its traffic.

    Nothing until every rank has reported.
    """
    plan = leg.document.plan
    if plan is None or len(leg.monitor.traffic) < _ranks(leg.document):
        return {}
    offers = leg.document.inputs.offers_by_id()
    zones = {node.id: offers[node.offer].zone for node in plan.nodes}
    reported: dict[str, list[int]] = {}
    for sent in leg.monitor.traffic.values():
        if sent.node in zones:
            reported.setdefault(zones[sent.node], []).append(leg.monitor.steps_metered(sent))
    pairs = [(src, dst) for src in reported for dst in set(zones.values()) - {src}]
    return {part: reported[src] for src, dst in pairs for part in _parts((src, dst))}


def _note(metered: int, done: int) -> str:
    if 0 < metered < done:
        return f"{METERED} for {metered} of {done} steps"
    return METERED if metered or not done else AS_PLANNED


def _unplanned(
    pair: Pair, nbytes: float, lines: list[CostLine], prices: UsagePrices, prefix: str
) -> Iterator[LedgerLine]:
    """Charge for unplanned traffic, such as messages between ranks besides training.

    If its price is missing, the plan's highest price is used and the run continues. Raises MissingPriceError if the
    plan has none either.
    """
    src, dst = pair
    try:
        found = prices.between(src, dst)
    except MissingPriceError:
        if not lines:
            raise
        highest = max(lines, key=lambda line: line.usd_per_unit)
        note = f"{METERED}, at the price of {highest.what}"
        line = replace(highest, what=f"{src} to {dst}", part=f"{src} to {dst}")
        yield planned_charge(line, quantity=nbytes / GB, note=note, prefix=prefix)
        return
    for price in found:
        part = traffic_part(src, dst, price.payer_zone)
        yield traffic_charge(CostKind.EGRESS, part, price, nbytes=nbytes, prefix=prefix)


def _lines(document: PlanDocument) -> list[CostLine]:
    if document.cost is None:
        return []
    return [line for line in document.cost.lines if line.kind is CostKind.EGRESS]


def _parts(pair: Pair) -> tuple[str, str]:
    """Return the possible bill names for a pair's traffic, whichever side pays."""
    src, dst = pair
    return traffic_part(src, dst, src), traffic_part(src, dst, dst)


def _ranks(document: PlanDocument) -> int:
    assert document.plan is not None
    return sum(stage.tp for pipeline in document.plan.pipelines for stage in pipeline.stages)
