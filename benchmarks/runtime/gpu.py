"""fp16 and bf16 on one CUDA device beside a plain torch loop with autocast; prints SKIPPED where there is none.

python benchmarks/runtime/gpu.py [--accelerator NAME]

One device shows layers, casts and the optimizer. These take several, and have not been measured: NCCL's reduce-scatter
and gathers in a stream beside the passes (pipeline/exchange.py), sums zone by zone and in bf16 over NCCL, and
the parts of a tensor that a stage's devices gather over NVLink (pipeline/transfers.py).

Layer profiles of the device come from `sailor-cloud profile JOB --accelerator NAME -o compute_profiles`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from worlds import model_of, run_world, spec_of

MODEL = model_of(hidden=1024, blocks=12, heads=16, sequence=1024, vocabulary=32000)
PRECISIONS = ("fp16", "bf16")


def skipped() -> str | None:
    """Return why nothing can be measured here, or None."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return None


def measure(folder: Path, accelerator: str) -> list[str]:
    lines = ["| precision | runtime | plain loop | throughput ratio |", "|---|---|---|---|"]
    for precision in PRECISIONS:
        pipelines = [(4, 4, ((0, MODEL.layers, 1, accelerator),))]
        spec = spec_of(MODEL, pipelines, folder, precision=precision)
        task = {"contenders": ["runtime", "plain loop"], "warm_up": 3, "rounds": 10, "steps": 3}
        seconds = run_world(spec, folder / precision, **task)["seconds"]
        own, other = (statistics.median(seconds[name]) for name in ("runtime", "plain loop"))
        ratio = statistics.median(b / a for a, b in zip(seconds["runtime"], seconds["plain loop"], strict=True))
        lines.append(f"| {precision} | {own:.3f} s | {other:.3f} s | {ratio:.2f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", default="H200-141", help="the device's name in pricing/accelerators.csv")
    chosen = parser.parse_args()
    why = skipped()
    if why is not None:
        print(f"SKIPPED: {why}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        print("\n".join(measure(Path(name), chosen.accelerator)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
