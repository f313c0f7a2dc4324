"""What even plans of several zones pay at least for traffic between zones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Seat, Space

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Least prices between any two zones, and what there is to be sent.

    layer_bytes: [layers], gradients of each. usd_per_sample: of a sample's tensors, there and back over one cut.
    """

    usd_per_byte: float
    usd_per_sample: float
    layer_bytes: Floats
    batch: int

    @classmethod
    def of(cls, space: Space, kinds: Kinds) -> Traffic | None:
        """Return the least traffic, or None where bytes between some zones cost nothing or there is one zone only."""
        rows = space.candidates.rows
        members = kinds.members
        apart = [(a, b) for a in members for b in members if rows[a.row].zone != rows[b.row].zone]
        per_byte = min((space.usd_per_byte(a.pool, b.pool) for a, b in apart), default=0.0)
        if per_byte <= 0.0 or space.layers < 2:
            return None
        seats = [(Seat(a.pool, a.tp, 0), Seat(b.pool, b.tp, 1)) for a, b in apart]
        table = space.table(members[0].pool, members[0].tp, 1, recompute=False)
        first = np.arange(space.layers)
        tied = float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)
        every = [space.table(kind.pool, kind.tp, 1, recompute=False) for kind in members]
        layer_bytes = np.min([each.gradient_bytes(first, first + 1) for each in every], axis=0)
        return cls(
            usd_per_byte=per_byte,
            usd_per_sample=min(float(space.cut_usd_per_sample(a, b)[1:-1].min()) for a, b in seats),
            layer_bytes=np.maximum(layer_bytes - tied * ((first == 0) + (first == space.layers - 1)), 0.0),
            batch=space.batch,
        )

    def rings_usd(self, replicas: int, nbytes: float) -> float:
        """Return the USD of summing so many bytes over replicas of several zones: the ring leaves a zone twice."""
        return 4.0 * (replicas - 1) / replicas * nbytes * self.usd_per_byte

    def everywhere_usd(self, replicas: int) -> float:
        """Return the USD per iteration where all rings, or all pipelines, are of several zones; for more replicas, too.

        A single pipeline of several zones crosses between them.
        """
        crossing = self.batch * self.usd_per_sample
        if replicas < 2:
            return crossing
        return min(crossing, self.rings_usd(replicas, float(self.layer_bytes.sum())))
