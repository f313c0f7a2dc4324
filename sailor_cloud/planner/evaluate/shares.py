"""Divides the batch among pipelines: the number of microbatches for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

# How many later end times are tried if no removal of microbatches leaves exactly the batch.
_MORE_ENDS = 64


def share_evenly(batch: int, sizes: Sequence[int], paces: Sequence[tuple[float, float]]) -> tuple[int, ...] | None:
    """Return counts that differ by at most one, the larger ones for faster pipelines.

    Arguments are as in share_batch; all pipelines have the first one's microbatch size. None if they can't add up to
    the batch exactly.
    """
    shares, rest = divmod(batch, sizes[0])
    if rest or shares < len(sizes):
        return None
    fewer, more = divmod(shares, len(sizes))
    fastest = sorted(range(len(sizes)), key=lambda p: (fewer * paces[p][0] + paces[p][1], p))
    return tuple(fewer + (fastest.index(p) < more) for p in range(len(sizes)))


def share_batch(batch: int, sizes: Sequence[int], paces: Sequence[tuple[float, float]]) -> tuple[int, ...] | None:
    """Return microbatch counts, at least one each, that add up to the batch exactly; None if there are none.

    paces: bottleneck and fill seconds of each pipeline. First finds the least time in which all together process at
    least the batch. Then removes exactly the surplus: as many of larger sizes as possible, and among equal sizes those
    that would end last.
    """
    if sum(sizes) > batch or batch % math.gcd(*sizes):
        return None
    seconds = _least_s(batch, sizes, paces)
    for _ in range(_MORE_ENDS):
        counts = _counts(seconds, paces)
        trimmed = _trim(counts, sizes, paces, _carried(counts, sizes) - batch)
        if trimmed is not None:
            return trimmed
        seconds = _next_end_s(counts, paces)
    return None


def _least_s(batch: int, sizes: Sequence[int], paces: Sequence[tuple[float, float]]) -> float:
    """Return the least time in which all pipelines together process the batch, each at least one microbatch."""
    alike = Counter(zip(sizes, paces, strict=True))
    distinct = [pace for _, pace in alike]
    weights = [size * count for (size, _), count in alike.items()]
    # Fractions of microbatches give a lower bound; from there, the search steps through the ends of microbatches.
    rate = sum(weight / bottleneck for weight, (bottleneck, _) in zip(weights, distinct, strict=True))
    begun = sum(
        weight * (1.0 - fill / bottleneck) for weight, (bottleneck, fill) in zip(weights, distinct, strict=True)
    )
    seconds = max(max(fill for _, fill in distinct), (batch - begun) / rate * (1.0 - 1e-12))
    while _carried(counts := _counts(seconds, distinct), weights) < batch:
        seconds = _next_end_s(counts, distinct)
    return seconds


def _next_end_s(counts: Sequence[int], paces: Sequence[tuple[float, float]]) -> float:
    """Return when the next microbatch of any pipeline ends."""
    return min(fill + count * bottleneck for count, (bottleneck, fill) in zip(counts, paces, strict=True))


def _counts(seconds: float, paces: Sequence[tuple[float, float]]) -> list[int]:
    return [max(1, int((seconds - fill) / bottleneck * (1 + 1e-12) + 1e-9) + 1) for bottleneck, fill in paces]


def _carried(counts: Sequence[int], sizes: Sequence[int]) -> int:
    return sum(size * count for size, count in zip(sizes, counts, strict=True))


def _trim(
    counts: Sequence[int], sizes: Sequence[int], paces: Sequence[tuple[float, float]], surplus: int
) -> tuple[int, ...] | None:
    """Return the counts with `surplus` samples fewer, or None if no choice yields exactly that."""
    removable: Counter[int] = Counter()
    for size, count in zip(sizes, counts, strict=True):
        # Each pipeline keeps one microbatch.
        removable[size] += count - 1
    removed = _removed(sorted(removable.items(), reverse=True), surplus, set())
    if removed is None:
        return None
    left = list(counts)
    for size, times in removed:
        last = [(-_last_s(paces[p], left[p]), p) for p in range(len(sizes)) if sizes[p] == size and left[p] > 1]
        heapify(last)
        for _ in range(times):
            _, p = heappop(last)
            left[p] -= 1
            if left[p] > 1:
                heappush(last, (-_last_s(paces[p], left[p]), p))
    return tuple(left)


def _removed(
    removable: Sequence[tuple[int, int]], surplus: int, failed: set[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Return how many microbatches of each size add up to the surplus, as many as possible of the first sizes.

    `removable`: sizes and how many there are. `failed`: numbers of sizes with a surplus that they can't make up.
    """
    if not surplus:
        return []
    if not removable or (len(removable), surplus) in failed:
        return None
    (size, most), *rest = removable
    for times in range(min(most, surplus // size), -1, -1):
        others = _removed(rest, surplus - times * size, failed)
        if others is not None:
            return [(size, times), *others]
    failed.add((len(removable), surplus))
    return None


def _last_s(pace: tuple[float, float], count: int) -> float:
    """Return when the last of `count` microbatches ends."""
    bottleneck, fill = pace
    return fill + (count - 1) * bottleneck
