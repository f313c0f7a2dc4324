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

    An area is a region where there are several, else a zone. Plans across areas may be told apart by their stages:
    SPLIT, every stage stands in several areas, or PARTLY, some stage stands in one area alone.
    """

    ANY = "any"
    INSIDE = "inside"
    ACROSS = "across"
    SPLIT = "split"
    PARTLY = "partly"


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
        if len(set(self.areas.values())) < 2:
            return np.zeros(len(use))
        ring, pipeline = self.ring_usd(replicas), self.pipeline_usd(size, replicas)
        inside = self._inside(replicas, use)
        aligned = inside.sum(axis=1) >= replicas
        if self.where is Where.INSIDE:
            return np.where(aligned & (replicas > 1), ring, np.inf)
        # All stages in several areas; or some of them; or none.
        split = ring + np.maximum(replicas - inside.sum(axis=1), 1) * pipeline
        if self.where is Where.SPLIT:
            return np.where(replicas > 1, split, np.inf)
        artifact = self.artifact
        bytes_of = [artifact.stage_bytes(layer, layer + 1, 1) for layer in range(artifact.layers)]
        least_ring = ring * min(bytes_of) / artifact.stage_bytes(0, artifact.layers, 1)
        partly = np.minimum(self._crossing(replicas, use) * pipeline + least_ring, replicas * pipeline)
        across = np.minimum(split, partly)
        if self.where in (Where.ACROSS, Where.PARTLY):
            return across if self.where is Where.ACROSS else partly
        return np.where(inside.max(axis=1) >= replicas, 0.0, np.minimum(np.where(aligned, ring, np.inf), across))

    def ring_usd(self, replicas: int) -> float:
        """Return the least USD of all stages' sums where every stage stands in several areas: across and back."""
        nbytes = self.artifact.stage_bytes(0, self.artifact.layers, 1)
        return self._price * 2.0 * (replicas - 1) / replicas * nbytes

    def pipeline_usd(self, size: int, replicas: int) -> float:
        """Return the least USD of what a pipeline sends that crosses areas."""
        artifact = self.artifact
        sent = min(artifact.sent_bytes(layer, 1) for layer in range(artifact.layers))
        return self._price * sent * size * -(-artifact.batch // (size * replicas))

    @property
    def _price(self) -> float:
        """USD of a byte from one area to another one and back."""
        return 2.0 * min(
            self.artifact.egress_usd_per_byte(a, b)
            for a, here in self.areas.items()
            for b, there in self.areas.items()
            if here != there
        )

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
