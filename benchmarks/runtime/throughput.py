"""Throughput of uniform plans beside DeepSpeed's and torch's pipelines, and of one device beside a plain loop."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from itertools import pairwise, product
from math import comb
from pathlib import Path

from bars import Bar
from worlds import model_of, run_world, spec_of

# Models with what a device trains of a batch, microbatch size and microbatches: many calls, much to sum for few tokens,
# and many tokens for little to sum.
SIZES = {
    "small": (model_of(hidden=256, blocks=6, heads=8, sequence=64, vocabulary=1024), 2, 4),
    "communication-bound": (model_of(hidden=512, blocks=4, heads=8, sequence=32, vocabulary=1024), 2, 2),
    "compute-bound": (model_of(hidden=256, blocks=4, heads=8, sequence=256, vocabulary=1024), 2, 2),
}
TORCH, DDP, DEEPSPEED = "torch.distributed.pipelining", "torch DDP", "DeepSpeed PipelineEngine"
PLAIN = "plain loop"
ROUNDS = 20
# Pipelines, stages of each, and against whom.
CASES = {
    "one device": (1, 1, (PLAIN,)),
    "2 stages": (1, 2, (TORCH, DEEPSPEED)),
    "2 replicas": (2, 1, (DDP, DEEPSPEED)),
    "2 replicas of 2 stages": (2, 2, (TORCH, DEEPSPEED)),
}


def measure(
    folder: Path, bars: list[Bar], *, rounds: int = ROUNDS, steps: int = 1, only: Sequence[str] = ("",)
) -> list[str]:
    """Return the lines of a table and add to `bars`. `only`: cases whose names hold one of these.

    A ratio is the median over rounds of the other's time over the runtime's; its interval holds the median of all
    rounds there could be with 90 % confidence.
    """
    lines = ["| size | plan | against | runtime | other | throughput ratio | 90 % | bar | |", "|---" * 9 + "|"]
    for (size, (model, samples, count)), (name, (replicas, stages, others)) in product(SIZES.items(), CASES.items()):
        what = f"{size}, {name}"
        if not any(part in what for part in only):
            continue
        cuts = [model.layers * stage // stages for stage in range(stages + 1)]
        shapes = [(first, end, 1, "CPU-fast") for first, end in pairwise(cuts)]
        spec = spec_of(model, [(samples, count * stages, shapes)] * replicas, folder)
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
            ratio_text = f"{ratio:.2f} ({low:.2f} to {high:.2f})"
            bar = Bar(what=f"{what} against {other}", found=ratio_text, asked="≥ 1.0", met=ratio >= 1.0)
            bars.append(bar)
            lines.append(
                f"| {size} | {name} | {other} | {own:.3f} s | {theirs:.3f} s | {ratio:.2f} | {low:.2f} to {high:.2f} | "
                f"{bar.asked} | {bar.verdict} |"
            )
        first, last = zip(*found["losses"].values(), strict=True)
        # Tokens are random and steps few, so losses tell other models and courses, not how much was learnt.
        assert max(first) - min(first) < 0.2, f"contenders train different models: {found['losses']}"
        assert max(last) - min(last) < 0.2, f"contenders train differently: {found['losses']}"
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
