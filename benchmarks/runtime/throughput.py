"""Throughput of uniform plans beside DeepSpeed's and torch's pipelines, and of one device beside a plain loop."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from itertools import product
from math import comb
from pathlib import Path

from bars import Bar
from worlds import model_of, run_world, spec_of

# Where messages and calls weigh, and where products do.
SIZES = {
    "small": model_of(hidden=256, blocks=6, heads=8, sequence=128, vocabulary=1024),
    "compute-bound": model_of(hidden=384, blocks=6, heads=8, sequence=256, vocabulary=1024),
}
TORCH, DDP, DEEPSPEED = "torch.distributed.pipelining", "torch DDP", "DeepSpeed PipelineEngine"
PLAIN = "plain loop"
ROUNDS = 20
_WHOLE = (0, 8, 1, "CPU-fast")
_HALVES = ((0, 4, 1, "CPU-fast"), (4, 8, 1, "CPU-fast"))
CASES = {
    "one device": ([(4, 4, [_WHOLE])], (PLAIN,)),
    "2 stages": ([(4, 8, _HALVES)], (TORCH, DEEPSPEED)),
    "2 replicas": ([(4, 4, [_WHOLE])] * 2, (DDP, DEEPSPEED)),
    "2 replicas of 2 stages": ([(4, 4, _HALVES)] * 2, (TORCH, DEEPSPEED)),
}


def measure(folder: Path, bars: list[Bar], *, rounds: int = ROUNDS, steps: int = 1) -> list[str]:
    """Return the lines of a table and add to `bars`.

    A ratio is the median over rounds of the other's time over the runtime's; its interval holds the median of all
    rounds there could be with 90 % confidence.
    """
    lines = ["| size | plan | against | runtime | other | throughput ratio | 90 % | bar | |", "|---" * 9 + "|"]
    for (size, model), (name, (pipelines, others)) in product(SIZES.items(), CASES.items()):
        spec, what = spec_of(model, pipelines, folder), f"{size}, {name}"
        try:
            found = run_world(
                spec,
                folder / what.replace(" ", "-"),
                contenders=["runtime", *others],
                warm_up=2,
                rounds=rounds,
                steps=steps,
            )
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            # One plan that a baseline can't run is no reason to lose the others.
            reason = f"failed: {str(error).splitlines()[-1]}"
            lines.append(f"| {size} | {name} | {', '.join(others)} | | | | | | {reason} |")
            bars += [Bar(what=f"{what} against {other}", found=reason, asked="≥ 1.0", met=False) for other in others]
            continue
        seconds = found["seconds"]
        for other in others:
            ratios = sorted(b / a for a, b in zip(seconds["runtime"], seconds[other], strict=True))
            ratio, (low, high) = statistics.median(ratios), interval(ratios)
            own, theirs = statistics.median(seconds["runtime"]), statistics.median(seconds[other])
            told = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            bar = Bar(what=f"{what} against {other}", found=told, asked="≥ 1.0", met=ratio >= 1.0)
            bars.append(bar)
            lines.append(
                f"| {size} | {name} | {other} | {own:.3f} s | {theirs:.3f} s | {ratio:.2f} | {low:.2f} to {high:.2f} | "
                f"{bar.asked} | {bar.verdict} |"
            )
        first, last = zip(*found["losses"].values(), strict=True)
        assert max(first) - min(first) < 0.1, f"contenders train different models: {found['losses']}"
        assert max(last) < min(first), f"a contender does not learn: {found['losses']}"
    return lines


def interval(values: Sequence[float], confidence: float = 0.9) -> tuple[float, float]:
    """Return between which of some sorted values the median of their distribution lies with some confidence.

    Whether a value is below the median is a coin's toss, so the binomial distribution tells which of them to take.
    """
    count = len(values)
    outside, least = 0.0, 0
    while outside + comb(count, least) / 2**count <= (1.0 - confidence) / 2.0:
        outside += comb(count, least) / 2**count
        least += 1
    least = max(least - 1, 0)
    return values[least], values[count - 1 - least]
