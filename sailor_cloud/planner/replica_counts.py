"""Numbers of pipelines worth looking at: fewer would do the same."""

from __future__ import annotations

from functools import cache


@cache
def replica_counts(shares: int) -> tuple[tuple[int, int], ...]:
    """Return the fewest replicas for every number of microbatches that the busiest of them may have."""
    fewest: dict[int, int] = {}
    for replicas in range(1, shares + 1):
        fewest.setdefault(-(-shares // replicas), replicas)
    return tuple((replicas, microbatches) for microbatches, replicas in sorted(fewest.items()))
