"""Measures the runtime: throughput beside others, start and restart, checkpoints, and predictions against runs.

python benchmarks/runtime/run.py [--only throughput|start|checkpoint|prediction|gpu]... [--case PART]... [--rounds N]
    [--results FILE]

--case: of throughput, those cases alone whose names hold PART, such as "communication-bound, 2 replicas".

Two cores, one run. Contenders take turns, so ratios hold where times are noisy; start and stall are times and want a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gpu
import prediction
import start
import throughput
from bars import Bar, table
from worlds import model_of, run_world, spec_of

STALL_BAR_S = 0.6
LARGE = model_of(hidden=768, blocks=12, heads=12, sequence=32, vocabulary=10_000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(PHASES))
    parser.add_argument("--case", action="append", metavar="PART")
    parser.add_argument("--rounds", type=int, default=throughput.ROUNDS)
    parser.add_argument("--results", type=Path)
    chosen = parser.parse_args()
    began = time.perf_counter()
    head = ["# Runtime", "", f"{len(os.sched_getaffinity(0))} cores, {_stack()}. `benchmarks/runtime/run.py`.", ""]
    lines: list[str] = []
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as name:
        # DeepSpeed's engine compiles a small extension; once for all worlds, and without locks that a killed run left.
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(name) / "extensions")
        for phase in chosen.only or PHASES:
            title, measure = PHASES[phase]
            if phase == "throughput":
                _compile_deepspeed()
                measure = partial(measure, only=chosen.case or ("",), rounds=chosen.rounds)
            phase_began = time.perf_counter()
            try:
                found = measure(Path(name) / phase, bars)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                # The other phases are worth having anyway.
                found = [f"failed: {error}"]
                bars.append(Bar(what=title, found="failed", asked="", met=False))
            found += ["", f"({time.perf_counter() - phase_began:.0f} s)"]
            lines += [f"## {title}", "", *found, ""]
            print("\n".join(found), flush=True)
    head += [*table(bars), "", f"The run took {time.perf_counter() - began:.0f} s.", ""]
    print("\n".join(["", *table(bars)]), flush=True)
    if chosen.results:
        chosen.results.write_text("\n".join([*head, *lines]), encoding="utf-8")
    return 0


def _compile_deepspeed() -> None:
    """Compile what DeepSpeed loads at its start on processors, as its own build would have done; a minute or two."""
    program = (
        "from deepspeed.accelerator import get_accelerator as found; "
        "found().create_op_builder('ShareMemCommBuilder').load(verbose=False)"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "DS_ACCELERATOR": "cpu"}, check=True)


def checkpoint(folder: Path, bars: list[Bar]) -> list[str]:
    """Return and add to `bars` the stall of asynchronous checkpoints with AdamW's state, as the slowest rank saw it."""
    halves = ((0, 7, 1, "CPU-fast"), (7, 14, 1, "CPU-fast"))
    spec = spec_of(LARGE, [(1, 2, halves), (1, 1, ((0, 14, 1, "CPU-fast"),))], folder)
    found = run_world(spec, folder / "world", program="stall.py", saves=4)
    stall = sorted(found["stalls"])[len(found["stalls"]) // 2]
    every = ", ".join(f"{value:.2f}" for value in found["stalls"])
    what = "stall of an asynchronous checkpoint, 100M parameters"
    bar = Bar(what=what, found=f"{stall:.2f} s", asked=f"≤ {STALL_BAR_S} s", met=stall <= STALL_BAR_S)
    bars.append(bar)
    return [
        f"100 million parameters with AdamW's state on 3 ranks: training stands still for {stall:.2f} s in the median "
        f"(all: {every}; bar: at most {STALL_BAR_S} s): {bar.verdict}. "
        f"A save ends {max(found['saves']):.1f} s after it began.",
    ]


def on_gpu(folder: Path, bars: list[Bar]) -> list[str]:
    why = gpu.skipped()
    return [f"SKIPPED: {why}"] if why else gpu.every(folder, "H200-141")


def _stack() -> str:
    import deepspeed
    import torch

    return f"torch {torch.__version__}, deepspeed {deepspeed.__version__}, gloo"


PHASES: dict[str, tuple[str, Callable[[Path, list[Bar]], list[str]]]] = {
    "throughput": ("Throughput under uniform plans", throughput.measure),
    "start": ("Start and restart", start.measure),
    "checkpoint": ("Checkpoints", checkpoint),
    "prediction": ("Predicted against measured iteration time", prediction.measure),
    "gpu": ("CUDA devices", on_gpu),
}

if __name__ == "__main__":
    sys.exit(main())
