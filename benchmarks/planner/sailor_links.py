"""What links between zones allow by the formulas of Sailor's artifact: bounds on transfers and on gradient sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations

import numpy as np
from numpy.typing import NDArray
from sailor_formulas import Artifact, Place

Floats = NDArray[np.float64]
Room = dict[str, int]

# Zones of which all orders are looked at.
_IN_ORDER = 3


@dataclass(slots=True)
class Links:
    """Transfers and sums of one artifact, each computed once."""

    artifact: Artifact
    _transfers: dict[tuple[object, ...], Floats] = field(default_factory=dict)
    _hops: dict[tuple[object, ...], Floats] = field(default_factory=dict)

    def transfer_s(self, nbytes: Floats, src: Place, dst: Place) -> Floats:
        key = (nbytes.tobytes(), src, dst)
        if key not in self._transfers:
            self._transfers[key] = np.asarray(self.artifact.transfer_s(nbytes, src, dst))
        return self._transfers[key]

    def hop_s(self, nbytes: Floats, replicas: int, gpu: str, ends: tuple[str, str]) -> Floats:
        """Return the seconds of a sum if all hops were like this one."""
        return self.ring_s(nbytes, replicas, *(Place(gpu, zone, 1) for zone in ends))

    def ring_s(self, nbytes: Floats, replicas: int, src: Place, dst: Place) -> Floats:
        """Return the seconds of a sum if all hops were like that from one place to the other."""
        key = (nbytes.tobytes(), replicas, src, dst)
        if key not in self._hops:
            self._hops[key] = np.asarray(self.artifact.ring_s(nbytes, replicas, src, dst))
        return self._hops[key]

    def least_ring_s(self, nbytes: Floats, tp: int, replicas: int, hop: tuple[Place, Place]) -> Floats:
        """Return the least seconds of a sum over a hop in which a replica of so large a tp takes part.

        nbytes: at tp 1. The smallest tp in the ring decides; fewer bytes may take longer, just above a whole bucket.
        """
        smaller = [each for each in (1, 2, 4) if each <= tp]
        return np.asarray(np.min([self.ring_s(nbytes / each, replicas, *hop) for each in smaller], axis=0))

    def least_sum_s(self, nbytes: Floats, replicas: int, gpu: str, room: Room, areas: dict[str, str]) -> Floats:
        """Return the least seconds of a stage's sum over all sets of zones that have room for its replicas.

        room: replicas by zone. They stand in at least two of the areas, if there are several.
        """
        if replicas < 2:
            return np.zeros_like(nbytes)
        hops = {(a, b): self.hop_s(nbytes, replicas, gpu, (a, b)) for a in room for b in room}
        best, fewest = np.full(nbytes.shape, np.inf), min(len(set(areas.values())), 2)
        for count in range(1, min(len(room), replicas) + 1):
            for zones in combinations(sorted(room), count):
                free = sum(room[zone] for zone in zones)
                if free < replicas or len({areas[zone] for zone in zones}) < fewest:
                    continue
                # A zone that the others have no room without holds at least two replicas side by side.
                inside = [hops[zone, zone] for zone in zones if replicas - (free - room[zone]) >= 2]
                best = np.minimum(best, np.max([*inside, _slowest_s(hops, zones)], axis=0))
        return best


def _slowest_s(hops: dict[tuple[str, str], Floats], zones: tuple[str, ...]) -> Floats:
    """Return a bound on the slowest hop of any order of the zones, exact for up to three."""
    if len(zones) > _IN_ORDER:
        # Every zone has a hop to or from another one.
        ends = [[hops[hop] for hop in permutations(zones, 2) if zone in hop] for zone in zones]
        return np.asarray(np.max([np.min(each, axis=0) for each in ends], axis=0))
    orders: Iterable[tuple[str, ...]] = permutations(zones) if len(zones) > 1 else [zones * 2]
    return np.asarray(np.min([np.max([hops[hop] for hop in pairwise(order)], axis=0) for order in orders], axis=0))


def region(zone: str) -> str:
    return zone.rpartition("-")[0]
