"""The cost of saving checkpoints during training, as the simulator's bill counts it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from sailor_cloud.catalog import Service, providers
from sailor_cloud.model.offer import Provider
from sailor_cloud.planner.space.draft import Draft, seats_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import egress_usd_per_byte
from sailor_cloud.simulator.bill import CHECKPOINT_BYTES_PER_PARAMETER, PART_BYTES, checkpoint_store
from sailor_cloud.simulator.money import CHECKPOINT_BYTES_PER_S, saving_fraction
from sailor_cloud.units import GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR


def saving_share(space: Space, slots: tuple[Slot, ...], cut: tuple[int, ...]) -> float:
    """Return the time that stalls for checkpoints add per second of training; the first pipeline writes them.

    The extra bytes of rare synchronization are left out.
    """
    key = (seats_of(slots), cut)
    known: dict[tuple[object, ...], float] = space.evaluated.setdefault("saving shares", {})
    if key not in known:
        sizes = (
            float(space.table(slot.pool, slot.tp, 1).parameters(*span))
            for slot, span in zip(slots, pairwise(cut), strict=True)
        )
        known[key] = _share(space, max(sizes))
    return known[key]


def least_saving_share(space: Space, slots: Sequence[Slot]) -> float:
    """Return a lower bound of `saving_share` over all cuts of a pipeline."""
    seats = {(slot.pool, slot.tp) for slot in slots}
    whole = min(float(space.table(pool, tp, 1).parameters(0, space.layers)) * tp for pool, tp in seats)
    return _share(space, whole / sum(slot.tp for slot in slots))


def _share(space: Space, parameters: float) -> float:
    seconds = parameters * CHECKPOINT_BYTES_PER_PARAMETER / CHECKPOINT_BYTES_PER_S
    return saving_fraction(interval_s=space.scenario.job.checkpoint.every, checkpoint_s=seconds)


def checkpoints_usd_per_hour(space: Space, draft: Draft) -> float:
    """Return the USD per hour of training for traffic to the bucket, requests and storage; 0 for a folder.

    The first pipeline writes them. NAT and the extra checkpoints of rare synchronization are left out.
    """
    first, scenario = draft.pipelines[0], space.scenario
    nodes = sorted(draft.pools)
    key = (tuple((slot.pool, slot.tp) for slot in first.slots), first.cut, *_bucket_pools(space, nodes))
    known: dict[tuple[object, ...], float] = space.evaluated.setdefault("checkpoints per hour", {})
    if key in known:
        return known[key]
    store = checkpoint_store(scenario, [space.pools[pool].offer for pool in nodes])
    if store is None:
        return known.setdefault(key, 0.0)
    provider, region, zone = store
    sizes: dict[str, float] = defaultdict(float)
    for slot, span in zip(first.slots, pairwise(first.cut), strict=True):
        parameters = float(space.table(slot.pool, slot.tp, 1).parameters(*span)) * slot.tp
        sizes[space.pools[slot.pool].offer.zone] += parameters * CHECKPOINT_BYTES_PER_PARAMETER
    catalog, job = scenario.catalog, scenario.job
    saved = sum(sizes.values())
    files = sum(slot.tp for slot in first.slots)
    writes = catalog.services.price(provider, region, Service.OBJECT_WRITES).usd_per_unit
    each = (saved / PART_BYTES + files) / 1000.0 * writes
    for src, nbytes in sizes.items():
        if providers.of(catalog.zone(src).provider).bills_services and catalog.region_of(src) != region:
            each += nbytes * egress_usd_per_byte(src, zone, scenario)
    kept = catalog.services.price(provider, region, Service.OBJECT_STORAGE).usd_per_unit
    stored = job.checkpoint.keep * saved / GIB * kept / HOURS_PER_MONTH
    return known.setdefault(key, stored + each * SECONDS_PER_HOUR / job.checkpoint.every)


def _bucket_pools(space: Space, pools: list[int]) -> tuple[int, ...]:
    """Return the first pool of each cloud; the bucket is near one of them."""
    found: dict[Provider, int] = {}
    for pool in pools:
        found.setdefault(space.pools[pool].offer.provider, pool)
    return tuple(found.values())
