"""Throughput of uniform plans beside DeepSpeed's and torch's pipelines, and of one device beside a plain loop."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

from bars import Bar
from worlds import model_of, run_world, spec_of

MODEL = model_of(hidden=256, blocks=6, heads=8, sequence=128, vocabulary=1024)
TORCH, DEEPSPEED, PLAIN = "torch.distributed.pipelining", "DeepSpeed PipelineEngine", "plain loop"
_WHOLE = (0, 8, 1, "CPU-fast")
_HALVES = ((0, 4, 1, "CPU-fast"), (4, 8, 1, "CPU-fast"))
CASES = {
    "one device": ([(4, 4, [_WHOLE])], {PLAIN: 0.98}),
    "2 stages": ([(4, 8, _HALVES)], {TORCH: 0.95, DEEPSPEED: 0.95}),
    "2 replicas": ([(4, 4, [_WHOLE])] * 2, {TORCH: 0.95, DEEPSPEED: 0.95}),
    "2 replicas of 2 stages": ([(4, 4, _HALVES)] * 2, {TORCH: 0.95, DEEPSPEED: 0.95}),
}


def measure(folder: Path, bars: list[Bar], *, rounds: int = 12, steps: int = 2) -> list[str]:
    """Return the lines of a table and add to `bars`.

    A ratio is the median over rounds of the other's time over the runtime's.
    """
    lines = ["| plan | against | runtime | other | throughput ratio | bar | |", "|---|---|---|---|---|---|---|"]
    for number, (name, (pipelines, others)) in enumerate(CASES.items()):
        spec = spec_of(MODEL, pipelines, folder)
        contenders = ["runtime", *others]
        try:
            found = run_world(
                spec, folder / f"throughput-{number}", contenders=contenders, warm_up=2, rounds=rounds, steps=steps
            )
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            # One plan that a baseline can't run is no reason to lose the others.
            reason = f"failed: {str(error).splitlines()[-1]}"
            lines.append(f"| {name} | {', '.join(others)} | | | | | {reason} |")
            bars += [
                Bar(what=f"{name} against {other}", found=reason, asked=f"≥ {least}", met=False)
                for other, least in others.items()
            ]
            continue
        seconds = found["seconds"]
        for other, least in others.items():
            ratio = statistics.median(b / a for a, b in zip(seconds["runtime"], seconds[other], strict=True))
            own, theirs = statistics.median(seconds["runtime"]), statistics.median(seconds[other])
            bar = Bar(what=f"{name} against {other}", found=f"{ratio:.2f}", asked=f"≥ {least}", met=ratio >= least)
            bars.append(bar)
            lines.append(
                f"| {name} | {other} | {own:.3f} s | {theirs:.3f} s | {ratio:.2f} | {bar.asked} | {bar.verdict} |"
            )
        first, last = zip(*found["losses"].values(), strict=True)
        assert max(first) - min(first) < 0.1, f"contenders train different models: {found['losses']}"
        assert max(last) < min(first), f"a contender does not learn: {found['losses']}"
    return lines
