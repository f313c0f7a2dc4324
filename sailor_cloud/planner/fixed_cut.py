"""Cheapest chains over one cut: what stands where is open, the layers of each stage are not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.chains import Chain, Lanes, after_share
from sailor_cloud.planner.kinds import Kinds, StageTimes
from sailor_cloud.simulator.engines import Transfers

Floats = NDArray[np.float64]


def chains_over(
    kinds: Kinds, times: Sequence[StageTimes], cut: tuple[int, ...], lanes: Sequence[Lanes]
) -> list[list[Chain]]:
    """Return the cheapest chain of every lane that has one, each chain once, for each of some microbatch sizes.

    `times` and `lanes`, as many of these for each, are those of the sizes. As in `cheapest_chains`, a stage is busy for
    its compute, the least cut before it and its share of the least cut after it.
    """
    if not times:
        return []
    spans = list(pairwise(cut))
    engine = kinds.space.scenario.engine
    share, waits = after_share(engine), engine.transfers is not Transfers.OVERLAPPED
    tps = np.array([kind.tp for kind in kinds.members], dtype=np.float64)
    rows = [kind.row for kind in kinds.members]
    # [sizes, kinds, lanes], and without kinds.
    price = np.stack([each.device_price[rows] for each in lanes]) * tps[:, None]
    fill_price = np.stack([each.fill_price for each in lanes])[:, None]
    bottleneck_s = np.stack([each.bottleneck_s for each in lanes])[:, None]
    value: Floats = np.zeros_like(price)
    # Of each cut, last first: what the stages from it on cost by their first kind, and the seconds between kinds.
    behind: list[tuple[Floats, Floats]] = []
    for s in range(len(spans) - 1, -1, -1):
        first, end = spans[s]
        compute = np.stack([each.compute_s[len(spans) - 1 - s, :, first, end] for each in times])
        before = np.stack([each.before_s[:, first] for each in times]) if waits else 0.0
        busy = compute + before + share * np.stack([each.after_s[:, end] for each in times])
        if s < len(spans) - 1:
            boundary = np.stack([each.boundary_s[:, :, end] for each in times])
            behind.append((value, boundary))
            value = (value[:, None] + boundary[..., None] * fill_price[:, None]).min(axis=2)
        spent = np.where(np.isfinite(compute), compute, 0.0)[..., None] * fill_price + price
        value = np.where(busy[..., None] <= bottleneck_s, value + spent, np.inf)
    members = np.empty((len(spans), *value[:, 0].shape), dtype=np.int64)
    members[0] = value.argmin(axis=1)
    sizes = np.arange(len(times))[:, None]
    for s, (rest, boundary) in enumerate(reversed(behind)):
        # [sizes, lanes, next kinds]: what was least is again.
        total = np.moveaxis(rest, 1, 2) + boundary[sizes, members[s]] * fill_price[:, 0, :, None]
        members[s + 1] = total.argmin(axis=2)
    possible = np.isfinite(value.min(axis=1))
    return [
        [
            Chain(microbatch_size=each.microbatch_size, kinds=chosen, cut=cut)
            for chosen in dict.fromkeys(map(tuple, members[:, number, possible[number]].T.tolist()))
        ]
        for number, each in enumerate(times)
    ]
