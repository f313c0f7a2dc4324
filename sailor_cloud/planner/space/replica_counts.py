"""Numbers of pipelines and microbatch sizes that add up to a batch, in less than linear time."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, rising."""
    low = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return (*low, *(number // divisor for divisor in reversed(low) if divisor * divisor != number))


@lru_cache(maxsize=1024)
def replica_counts(shares: int, most: int) -> tuple[tuple[int, int], ...]:
    """Return the fewest replicas, at most `most`, for every number of microbatches of the busiest replica.

    More replicas with the same number would not be faster.
    """
    fewest: dict[int, int] = {}
    for replicas in range(1, min(shares, most) + 1):
        fewest.setdefault(-(-shares // replicas), replicas)
    return tuple((replicas, microbatches) for microbatches, replicas in sorted(fewest.items()))
