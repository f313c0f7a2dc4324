"""Pipelines as columns of an integer programme: what each carries in a given time and what it uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.chains import Chain
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Seat
from sailor_cloud.simulator import busy_s, fill_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Columns with their figures as arrays, [columns] each but `devices`, which is [rows, columns]."""

    every: tuple[Column, ...]
    bottleneck_s: Floats
    fill_s: Floats
    update_s: Floats
    usd_per_sample: Floats
    sizes: Ints
    devices: Floats

    @classmethod
    def of(cls, columns: Sequence[Column]) -> Columns:
        """Return at least one column as arrays."""
        return cls(
            every=tuple(columns),
            bottleneck_s=np.array([each.bottleneck_s for each in columns]),
            fill_s=np.array([each.fill_s for each in columns]),
            update_s=np.array([each.update_s for each in columns]),
            usd_per_sample=np.array([each.usd_per_sample for each in columns]),
            sizes=np.array([each.chain.microbatch_size for each in columns]),
            devices=np.array([each.devices for each in columns], dtype=np.float64).T,
        )

    def __len__(self) -> int:
        return len(self.every)

    def samples(self, seconds: float, batch: int) -> Floats:
        """Return how many of `batch` samples each pipeline alone carries in so many seconds, its step counted."""
        left = seconds - self.update_s - self.fill_s
        microbatches = np.where(left < 0.0, 0.0, np.floor(left / self.bottleneck_s + 1e-9) + 1.0)
        return np.asarray(np.minimum(microbatches * self.sizes, batch) // self.sizes * self.sizes)


def columns_over(kinds: Kinds, cut: tuple[int, ...], chains: Sequence[Chain]) -> list[Column]:
    """Return the columns of chains over one cut."""
    if not chains:
        return []
    sizes = sorted({chain.microbatch_size for chain in chains})
    times = [each for each in map(kinds.times, sizes) if each is not None]
    at = np.array([sizes.index(chain.microbatch_size) for chain in chains])
    stages = len(cut) - 1
    members = np.array([chain.kinds for chain in chains])
    compute, update = np.empty((2, len(chains), stages))
    cuts = np.zeros((len(chains), stages - 1))
    for s, (a, b) in enumerate(pairwise(cut)):
        here = members[:, s]
        compute[:, s] = np.stack([each.compute_s[stages - 1 - s, :, a, b] for each in times])[at, here]
        update[:, s] = np.stack([each.update_s[:, a, b] for each in times])[at, here]
        if s < stages - 1:
            cuts[:, s] = np.stack([each.boundary_s[:, :, b] for each in times])[at, here, members[:, s + 1]]
    longest_update = update.max(axis=1)
    busy = busy_s(compute, cuts, engine=kinds.space.scenario.engine).max(axis=1)
    fill = fill_s(compute, cuts)
    devices = np.zeros((len(chains), len(kinds.space.candidates.rows)), dtype=np.int64)
    rows, tps = np.array([(kind.row, kind.tp) for kind in kinds.members]).T
    for s in range(stages):
        np.add.at(devices, (np.arange(len(chains)), rows[members[:, s]]), tps[members[:, s]])
    return [
        Column(
            chain=chain,
            bottleneck_s=float(busy[number]),
            fill_s=float(fill[number]),
            update_s=float(longest_update[number]),
            devices=tuple(devices[number].tolist()),
            usd_per_sample=_usd_per_sample(kinds, chain),
        )
        for number, chain in enumerate(chains)
    ]


def _usd_per_sample(kinds: Kinds, chain: Chain) -> float:
    """Return the egress of one sample's tensors over the cuts that lie between zones."""
    rows = kinds.space.candidates.rows
    return sum(
        float(kinds.space.cut_usd_per_sample(_seat(kinds, src), _seat(kinds, dst))[chain.cut[s + 1]])
        for s, (src, dst) in enumerate(pairwise(chain.kinds))
        if rows[kinds.members[src].row].zone != rows[kinds.members[dst].row].zone
    )


def _seat(kinds: Kinds, member: int) -> Seat:
    kind = kinds.members[member]
    return Seat(kind.pool, kind.tp, member)
