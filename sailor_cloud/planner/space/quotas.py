"""The account's quotas as limits of the search.

Several pools may share a quota: the zones of a region, the accelerators of a family, both markets. The limits of a pool
or a row cover each one's own use of a quota. This module checks their use together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.catalog.account.quotas import Counted, QuotaLimit
from sailor_cloud.model.offer import Offer

if TYPE_CHECKING:
    from sailor_cloud.planner.space.candidates import Candidates, Pool, Row

Floats = NDArray[np.float64]

# Quotas are whole numbers; this absorbs rounding of sums.
_SLACK = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaArrays:
    """Quotas as arrays: a plan with `nodes` [pools] keeps them if `units @ nodes <= left`.

    units: what one node of a pool takes, shape [quotas, pools]. left: shape [quotas]. row_units: the least that one
    device of a row takes, over the pools of the row, shape [quotas, rows].
    """

    units: Floats
    left: Floats
    row_units: Floats


def keeps_quotas(candidates: Candidates, nodes: Mapping[int, int]) -> bool:
    """Return whether these numbers of nodes of the candidates' pools keep all quotas."""
    return all(used(quota, candidates, nodes) <= quota.remaining + _SLACK for quota in candidates.quotas)


def used(quota: QuotaLimit, candidates: Candidates, nodes: Mapping[int, int]) -> float:
    """Return what these numbers of nodes of each pool take of a quota."""
    return math.fsum(quota.units(candidates.pools[pool].offer) * count for pool, count in nodes.items())


def quota_arrays(candidates: Candidates) -> QuotaArrays:
    """Return the quotas of the candidates as arrays; they are empty if no quota can be exceeded."""
    quotas, pools = candidates.quotas, candidates.pools
    units = np.array([[quota.units(pool.offer) for pool in pools] for quota in quotas]).reshape(len(quotas), len(pools))
    row_units = np.full((len(quotas), len(candidates.rows)), np.inf)
    for index, pool in enumerate(pools):
        row_units[:, pool.row] = np.minimum(row_units[:, pool.row], units[:, index] / pool.devices)
    return QuotaArrays(
        units=units,
        left=np.array([quota.remaining for quota in quotas]),
        row_units=np.where(np.isfinite(row_units), row_units, 0.0),
    )


def binding(quotas: Iterable[QuotaLimit], pools: Sequence[Pool], rows: Sequence[Row]) -> tuple[QuotaLimit, ...]:
    """Return the quotas that plans can exceed within the limits of every pool and row."""
    return tuple(quota for quota in quotas if _most(quota, pools, rows) > quota.remaining + _SLACK)


def _most(quota: QuotaLimit, pools: Sequence[Pool], rows: Sequence[Row]) -> float:
    """Return the most that plans within the limits of rows may take of a quota."""
    highest: dict[int, float] = {}
    for pool in pools:
        each = quota.units(pool.offer) / pool.devices
        highest[pool.row] = max(highest.get(pool.row, 0.0), each)
    return math.fsum(each * rows[row].devices for row, each in highest.items())


def most_nodes(offer: Offer, devices: int, quotas: Iterable[QuotaLimit]) -> int:
    """Return how many nodes of an offer a limit on devices and the quotas allow."""
    allowed = [quota.remaining / units for quota in quotas if (units := quota.units(offer)) > 0]
    return int(min([devices // offer.accelerator_count, *(math.floor(count + _SLACK) for count in allowed)]))


def within(devices: int, offers: Iterable[Offer], quotas: tuple[QuotaLimit, ...]) -> int:
    """Return the most devices of a row, in whole nodes of its offers, that keep the quotas, for each market alone."""
    by_market: dict[str, list[Offer]] = {}
    for offer in offers:
        if offer.accelerator_count <= devices:
            by_market.setdefault(offer.market.value, []).append(offer)
    if not quotas or not by_market:
        return devices
    return min(devices, sum(_market_devices(devices, group, quotas) for group in by_market.values()))


def _market_devices(devices: int, offers: Sequence[Offer], quotas: Iterable[QuotaLimit]) -> int:
    most = float(devices)
    for quota in quotas:
        least = min(quota.units(offer) / offer.accelerator_count for offer in offers)
        if least > 0:
            most = min(most, quota.remaining / least)
    return math.floor(most + _SLACK)


def too_small(quota: QuotaLimit, offer: Offer) -> str | None:
    """Return, in words, that a quota allows not even one node of an offer; None if it does."""
    needed = quota.units(offer)
    if needed <= quota.remaining + _SLACK:
        return None
    return f"quota {quota.remaining:g} < {needed:g} {unit(quota)} of a node: {name(quota)}"


def name(quota: QuotaLimit) -> str:
    """Return a quota's name with its place, its current use, and when it was read."""
    taken = f", {quota.used:g} of {quota.limit:g} in use" if quota.used else ""
    return f"{quota.quota} of {quota.place} (read on {quota.read_on}{taken})"


def unit(quota: QuotaLimit) -> str:
    return "vCPUs" if quota.counts is Counted.VCPUS else "devices"
