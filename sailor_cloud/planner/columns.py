"""Pipelines as columns of an integer programme: what each carries in a given time and what it uses."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.chains import Chain
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Seat
from sailor_cloud.simulator import busy_s, fill_s

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A chain with its times by the optimistic links of its kinds, and the devices that it takes of each row."""

    chain: Chain
    bottleneck_s: float
    fill_s: float
    update_s: float
    devices: tuple[int, ...]
    usd_per_sample: float

    def microbatches(self, seconds: float) -> int:
        """Return how many microbatches the pipeline gets through in so many seconds."""
        if seconds < self.fill_s:
            return 0
        return int((seconds - self.fill_s) / self.bottleneck_s + 1e-9) + 1


def column(kinds: Kinds, chain: Chain) -> Column:
    """Return the column of a chain."""
    times = kinds.times(chain.microbatch_size)
    assert times is not None
    stages = len(chain.kinds)
    spans = list(pairwise(chain.cut))
    compute = np.array([times.compute_s[stages - 1 - s, chain.kinds[s], a, b] for s, (a, b) in enumerate(spans)])
    cuts = np.array(
        [times.boundary_s[src, dst, chain.cut[s + 1]] for s, (src, dst) in enumerate(pairwise(chain.kinds))]
    )
    devices = [0] * len(kinds.space.candidates.rows)
    for member in chain.kinds:
        devices[kinds.members[member].row] += kinds.members[member].tp
    return Column(
        chain=chain,
        bottleneck_s=float(busy_s(compute, cuts, execution=kinds.space.scenario.execution).max()),
        fill_s=float(fill_s(compute, cuts)),
        update_s=float(max(times.update_s[chain.kinds[s], a, b] for s, (a, b) in enumerate(spans))),
        devices=tuple(devices),
        usd_per_sample=sum(
            float(kinds.space.cut_usd_per_sample(_seat(kinds, src), _seat(kinds, dst))[chain.cut[s + 1]])
            for s, (src, dst) in enumerate(pairwise(chain.kinds))
        ),
    )


def _seat(kinds: Kinds, member: int) -> Seat:
    kind = kinds.members[member]
    return Seat(kind.pool, kind.tp, member)
