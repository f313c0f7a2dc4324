"""The cost of a run's checkpoints in a bucket: writes by origin, and how long each was kept.

Sizes and files come from the ranks. If a save did not report them, the plan's figures apply to the steps done, and the
lines say so. As in the plan, reading back is left out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sailor_cloud.launch.spend.charges import AS_PLANNED, METERED, planned_charge, traffic_charge
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.generation_log import RecordedGeneration
from sailor_cloud.model.document import CostKind, CostLine, PlanDocument
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.parts import checkpoint_traffic_part
from sailor_cloud.provision.providers import on_this_machine
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.simulator.bill import PART_BYTES, Place, bucket_place, checkpoint_nat_lines
from sailor_cloud.units import GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    """A checkpoint in a bucket; files and bytes by source zone, None if unknown."""

    at: datetime
    files: int
    by_zone: dict[str, float] | None


def charges(
    document: PlanDocument, legs: Sequence[RecordedGeneration], prices: UsagePrices, *, until: datetime
) -> tuple[LedgerLine, ...]:
    """Return the cost of checkpoints until some time, at the prices of the run's own plan.

    Nothing if the plan has no such cost: then checkpoints are in a folder.
    """
    lines = [line for line in _lines(document) if line.unit != "hour"]
    if not lines:
        return ()
    saves = sorted((save for leg in legs for save in _saves(leg)), key=lambda save: save.at)
    if not saves:
        return ()
    if any(save.by_zone is None for save in saves):
        return tuple(_as_planned(document, lines, legs))
    offers = {offer.zone: offer for leg in legs for offer in leg.document.inputs.offers}
    return tuple(_measured(document, lines, saves, offers, prices, until))


def _measured(
    document: PlanDocument,
    lines: Sequence[CostLine],
    saves: Sequence[_Save],
    offers: Mapping[str, Offer],
    prices: UsagePrices,
    until: datetime,
) -> Iterator[LedgerLine]:
    sent: Counter[str] = Counter()
    for save in saves:
        sent.update(save.by_zone or {})
    requests = (sum(sent.values()) / PART_BYTES + sum(save.files for save in saves)) / 1000.0
    kept = _kept_gib_months(saves, document.job.checkpoint.keep, until)
    for line in lines:
        if line.unit == "GiB-month":
            yield planned_charge(line, quantity=kept, note=METERED)
        elif line.unit == "1000 requests":
            yield planned_charge(line, quantity=requests, note=METERED)
    bucket = bucket_place(
        [placed.offer for placed in placed_nodes(document)], document.job.checkpoint.to, prices.first_zone
    )
    assert bucket is not None, "the plan has a bucket"
    provider, region, near = bucket
    yield from _through_nat(document, sent, offers, (provider, region), prices)
    for zone, nbytes in sorted(sent.items()):
        # Traffic to a bucket of the same region is free, and no cloud bills uploads from local nodes.
        if offers[zone].region == region or on_this_machine(offers[zone].provider):
            continue
        for price in prices.between(zone, near):
            part = checkpoint_traffic_part(zone, region, price.payer_zone)
            yield traffic_charge(CostKind.CHECKPOINT, part, price, nbytes=nbytes)


def _through_nat(
    document: PlanDocument, sent: Mapping[str, float], offers: Mapping[str, Offer], bucket: Place, prices: UsagePrices
) -> Iterator[LedgerLine]:
    sizes: Counter[tuple[Provider, str]] = Counter()
    for zone, nbytes in sent.items():
        sizes[offers[zone].provider, offers[zone].region] += int(nbytes)
    for line in checkpoint_nat_lines(sizes, bucket, prices.services, document.job.cloud.network):
        yield planned_charge(line, quantity=line.quantity, note=METERED)


def _kept_gib_months(saves: Sequence[_Save], keep: int, until: datetime) -> float:
    """Return the GiB-months of all checkpoints; each lasts until `keep` newer ones exist."""
    ends = [*(save.at for save in saves[keep:]), *itertools.repeat(until, min(keep, len(saves)))]
    return (
        math.fsum(
            sum((save.by_zone or {}).values()) / GIB * max(0.0, (end - save.at).total_seconds()) / SECONDS_PER_HOUR
            for save, end in zip(saves, ends, strict=True)
        )
        / HOURS_PER_MONTH
    )


def _as_planned(
    document: PlanDocument, lines: Sequence[CostLine], legs: Sequence[RecordedGeneration]
) -> Iterator[LedgerLine]:
    steps = document.job.training.steps
    if steps:
        share = sum(leg.monitor.steps_done + leg.monitor.steps_unseen for leg in legs) / steps
        for line in lines:
            yield planned_charge(line, quantity=line.quantity * share, note=AS_PLANNED)


def _saves(leg: RecordedGeneration) -> Iterator[_Save]:
    zones = _zones_of_ranks(leg.document)
    for event in leg.monitor.checkpoints:
        if "://" not in str(event["path"]):
            continue
        written = event.get("written")
        by_zone: Counter[str] | None = None
        if written is not None and len(written) == len(zones):
            by_zone = Counter()
            for zone, (_, nbytes) in zip(zones, written, strict=True):
                by_zone[zone] += nbytes
        files = sum(number for number, _ in written or ())
        at = datetime.fromtimestamp(float(event.get("ts", 0.0)), UTC)
        yield _Save(at=at, files=files, by_zone=None if by_zone is None else dict(by_zone))
    for saved in leg.monitor.lost_checkpoints:
        if "://" in saved.path:
            yield _Save(at=datetime.fromtimestamp(saved.at, UTC), files=0, by_zone=None)


def _zones_of_ranks(document: PlanDocument) -> list[str]:
    assert document.plan is not None
    offers = document.inputs.offers_by_id()
    zones = {node.id: offers[node.offer].zone for node in document.plan.nodes}
    stages = [stage for pipeline in document.plan.pipelines for stage in pipeline.stages]
    return [zones[stage.node] for stage in stages for _ in range(stage.tp)]


def _lines(document: PlanDocument) -> list[CostLine]:
    return [line for line in document.cost.lines if line.kind is CostKind.CHECKPOINT] if document.cost else []
