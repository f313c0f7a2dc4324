"""Cheapest chains over one cut: what stands where is open, the layers of each stage are not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.chains import Chain, Lanes, after_share
from sailor_cloud.planner.kinds import Kinds, StageTimes
from sailor_cloud.simulator.scenario import Transfers

Floats = NDArray[np.float64]


def chains_over(kinds: Kinds, times: StageTimes, cut: tuple[int, ...], lanes: Lanes) -> list[Chain]:
    """Return the cheapest chain of every lane that has one, each chain once.

    As in `cheapest_chains`, a stage is busy for its compute, the least cut before it and its share of the least cut
    after it.
    """
    spans = list(pairwise(cut))
    execution = kinds.space.scenario.execution
    share, waits = after_share(execution), execution.transfers is not Transfers.OVERLAPPED
    tps = np.array([kind.tp for kind in kinds.members], dtype=np.float64)
    price = lanes.device_price[[kind.row for kind in kinds.members]] * tps[:, None]
    value: Floats = np.zeros_like(price)
    following: list[NDArray[np.int64]] = []
    for s in range(len(spans) - 1, -1, -1):
        first, end = spans[s]
        compute = times.compute_s[len(spans) - 1 - s, :, first, end]
        before = times.before_s[:, first] if waits else 0.0
        busy = compute + before + share * times.after_s[:, end]
        if s < len(spans) - 1:
            total = value[None] + times.boundary_s[:, :, end, None] * lanes.fill_price
            best = total.argmin(axis=1)
            following.append(best)
            value = total.min(axis=1)
        spent = np.where(np.isfinite(compute), compute, 0.0)[:, None] * lanes.fill_price + price
        value = np.where(busy[:, None] <= lanes.bottleneck_s, value + spent, np.inf)
    start = value.argmin(axis=0)
    found: dict[Chain, None] = {}
    for lane in np.flatnonzero(np.isfinite(value.min(axis=0))):
        members = [int(start[lane])]
        for best in reversed(following):
            members.append(int(best[members[-1], lane]))
        found[Chain(microbatch_size=times.microbatch_size, kinds=tuple(members), cut=cut)] = None
    return list(found)
