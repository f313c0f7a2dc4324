"""How fast this machine computes, so that limits in processor seconds hold on a slow or busy one too."""

from __future__ import annotations

import time

# What `_work` took on the machine for which the limits were set.
USUAL_S = 0.020


def slowdown() -> float:
    """Return how many times as long as usual a fixed piece of Python takes here and now, at least 1."""
    return max(1.0, min(_work() for _ in range(5)) / USUAL_S)


def _work() -> float:
    began, total = time.process_time(), 0
    for number in range(400_000):
        total += number % 7
    return time.process_time() - began
