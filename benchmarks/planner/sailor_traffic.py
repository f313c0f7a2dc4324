"""Bounds on what traffic between areas costs by the formulas of Sailor's artifact, from a plan's devices alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from sailor_formulas import Artifact

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Where(Enum):
    """Where pipelines stand: anywhere, or each inside one of several areas, or some of them in more than one area.

    An area is a region where there are several, else a zone.
    """

    ANY = "any"
    INSIDE = "inside"
    ACROSS = "across"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """areas: that of each zone. there: devices, shape [areas, gpus].

    alike: whether all pipelines use the same devices, else they use those said or more.
    """

    artifact: Artifact
    where: Where
    areas: dict[str, str]
    there: Ints
    alike: bool = True

    def least_usd(self, size: int, replicas: int, use: Ints) -> Floats:
        """Return the least USD of an iteration by the devices of one pipeline; infinite where there is no such plan.

        Stages in several areas sum their gradients across and back. Where a stage stands in one area alone, all
        pipelines send activations and gradients across for which that area has no room. use: [vectors, gpus].
        """
        artifact = self.artifact
        prices = [
            artifact.egress_usd_per_byte(a, b)
            for a, here in self.areas.items()
            for b, there in self.areas.items()
            if here != there
        ]
        if not prices:
            return np.zeros(len(use))
        price, inside = 2.0 * min(prices), self._inside(replicas, use)
        aligned = inside.sum(axis=1) >= replicas
        shares = price * 2.0 * (replicas - 1) / replicas
        ring = shares * artifact.stage_bytes(0, artifact.layers, 1)
        if self.where is Where.INSIDE:
            return np.where(aligned & (replicas > 1), ring, np.inf)
        sent = min(artifact.sent_bytes(layer, 1) for layer in range(artifact.layers))
        pipeline = price * sent * size * -(-artifact.batch // (size * replicas))
        # All stages in several areas; or some of them; or none.
        split = ring + np.maximum(replicas - inside.sum(axis=1), 1) * pipeline
        least_ring = shares * min(artifact.stage_bytes(layer, layer + 1, 1) for layer in range(artifact.layers))
        partly = np.minimum(self._crossing(replicas, use) * pipeline + least_ring, replicas * pipeline)
        across = np.minimum(split, partly)
        if self.where is Where.ACROSS:
            return across
        return np.where(inside.max(axis=1) >= replicas, 0.0, np.minimum(np.where(aligned, ring, np.inf), across))

    def _inside(self, replicas: int, use: Ints) -> Ints:
        """Return how many whole pipelines each area has room for, shape [vectors, areas]."""
        room = np.where(use[:, None] > 0, self.there // np.maximum(use[:, None], 1), replicas)
        return np.asarray(room.min(axis=2))

    def _crossing(self, replicas: int, use: Ints) -> Floats:
        """Return how many pipelines cross areas at least where a stage stands in one area and others are split.

        That stage takes a device of some GPU at least; what its area has no room for is in the split stages of the
        crossing pipelines alone.
        """
        inside = self._inside(replicas, use)
        if not self.alike:
            return np.asarray(np.clip(replicas - inside.max(axis=1), 1, replicas), dtype=np.float64)
        over = np.maximum(use[:, None] * replicas - self.there, 0)
        least = np.full(inside.shape, np.inf)
        for gpu in range(use.shape[1]):
            split = np.maximum(use - (np.arange(use.shape[1]) == gpu), 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                each = np.where(over > 0, np.ceil(over / split[:, None]), 0.0).max(axis=2)
            least = np.minimum(least, np.where((use[:, gpu] > 0)[:, None], each, np.inf))
        least = np.maximum(np.maximum(least, replicas - inside), 1)
        return np.asarray(np.minimum(least.min(axis=1), replicas))
