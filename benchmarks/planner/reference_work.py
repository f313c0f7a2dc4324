"""Work by which processor seconds of different machines, or of one under different load, are compared.

As a script it prints its own CPU seconds. They were 1.0 on the machine of the first results: 2 cores x86_64 at 2.6 GHz,
CPython 3.11, numpy 2, with little else running (2026-11-24). Divide seconds that were measured beside it by them.
"""

from __future__ import annotations

import sys
import time

import numpy as np

_ROUNDS = 45_000


def reference_cpu_s() -> float:
    """Return the CPU seconds of a fixed piece of the planner's kind of work: many small arrays, and plain Python."""
    generator = np.random.default_rng(0)
    values, order = generator.random((24, 400)), {}
    begun = time.process_time()
    for number in range(_ROUNDS):
        longest = np.maximum(values[number % 24], values[(number + 7) % 24])
        total = np.cumsum(longest + values.min(axis=0))
        first = np.argsort(total * (1 + number % 3), kind="stable")[:20]
        for place in first.tolist():
            order[place, number % 50] = min(order.get((place, number % 50), 1e9), float(total[place]))
        if number % 40 == 0:
            order = dict(sorted(order.items())[:2000])
    return time.process_time() - begun


if __name__ == "__main__":
    sys.stdout.write(f"{reference_cpu_s():.3f}\n")
