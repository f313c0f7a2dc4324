"""Divides the batch among pipelines: the number of microbatches for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

# Ends of microbatches that differ by less are equal.
_ROUNDED = 1e-12


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

    paces: bottleneck and fill seconds of each pipeline. In the least time possible, all together process at least the
    batch, and a surplus can be removed exactly: as many of larger sizes as possible, and among equal sizes those that
    would end last.
    """
    if not _possible(batch - sum(sizes), sizes):
        return None

    def within(seconds: float) -> tuple[int, ...] | None:
        counts = _counts(seconds, paces)
        return _trim(counts, sizes, paces, _carried(counts, sizes) - batch)

    low = high = _least_s(batch, sizes, paces)
    found = within(low)
    if found is not None:
        return found
    # With more time a surplus can still be removed, so the least time lies between one that is too short and one that
    # is not.
    step = _next_end_s(_counts(low, paces), paces) - low
    while found is None:
        low, high, step = high, high + step, 2.0 * step
        found = within(high)
    while True:
        high = max(_last_s(pace, count) for pace, count in zip(paces, found, strict=True))
        end = _next_end_s(_counts(low, paces), paces)
        if end >= high * (1.0 - _ROUNDED):
            return found
        middle = max(end, 0.5 * (low + high))
        sooner = within(middle)
        low, found = (middle, found) if sooner is None else (low, sooner)


def _possible(wanted: int, sizes: Sequence[int]) -> bool:
    """Return whether multiples of the sizes add up to `wanted` samples."""
    common, largest = math.gcd(*sizes), max(sizes)
    if wanted < 0 or wanted % common:
        return False
    # From the square of the largest size on, all multiples of the common divisor are sums.
    return wanted >= largest * largest or _sums([(size, wanted) for size in set(sizes)], wanted) is not None


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
    each = sorted(removable.items(), reverse=True)
    sums = _sums(each, surplus)
    if sums is None:
        return None
    left = list(counts)
    for (size, most), others in zip(each, sums[1:], strict=True):
        times = next(k for k in range(min(most, surplus // size), -1, -1) if others >> (surplus - k * size) & 1)
        surplus -= times * size
        last = [(-_last_s(paces[p], left[p]), p) for p in range(len(sizes)) if sizes[p] == size and left[p] > 1]
        heapify(last)
        for _ in range(times):
            _, p = heappop(last)
            left[p] -= 1
            if left[p] > 1:
                heappush(last, (-_last_s(paces[p], left[p]), p))
    return tuple(left)


def _sums(each: Sequence[tuple[int, int]], wanted: int) -> list[int] | None:
    """Return the sums up to `wanted` that sizes make, as bits: of all sizes, of all but the first, and so on.

    `each`: sizes, and how often each may be used. None if no sum is `wanted`.
    """
    found = [1]
    for size, most in reversed(each):
        sums, step = found[0], 1
        most = min(most, wanted // size)
        while most > 0:
            # Doubling the steps reaches every number of times up to `most`.
            step = min(step, most)
            sums |= sums << step * size
            most -= step
            step *= 2
        found.insert(0, sums & ((2 << wanted) - 1))
    return found if found[0] >> wanted & 1 else None


def _last_s(pace: tuple[float, float], count: int) -> float:
    """Return when the last of `count` microbatches ends."""
    bottleneck, fill = pace
    return fill + (count - 1) * bottleneck
