"""What only CUDA devices can show; prints SKIPPED where there is none.

python benchmarks/runtime/gpu.py [--accelerator NAME] [--part one|exact|several]

On one device: fp16 and bf16 beside a plain torch loop with autocast; step and peak memory with the loss in chunks and
with dropout, at two sequence lengths; that the host waits for nothing between backward pass and optimizer; how long a
checkpoint from pinned memory holds up training. On two devices or more: each plan against one process in float64
(NCCL's reduce-scatter and gathers in a stream beside the passes, sums zone by zone and in bf16, the parts of a tensor
that a stage's devices gather over NVLink), replicas beside DDP under every ZeRO stage, and a stage per device under
1F1B, a zero-bubble and an interleaved schedule. Where there is one device, up to four ranks share it for the first of
these: each is a host of its own to NCCL, which connects them by sockets. Their times would say nothing.

Layer profiles of the device come from `sailor-cloud profile JOB --accelerator NAME -o compute_profiles`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from worlds import model_of, run_world, spec_of

from sailor_runtime.spec import INTERLEAVED, SCHEDULES, ZERO_BUBBLE, RunSpec

MODEL = model_of(hidden=1024, blocks=12, heads=16, sequence=1024, vocabulary=32000)
PRECISIONS = ("fp16", "bf16")
# So many ranks of a plan share a device where there is one only.
SHARED = 4
# Sequence length, dropout and vocabulary: of the last one a microbatch has more logits than a chunk.
LONG = ((2048, 0.0, 32000), (8192, 0.0, 32000), (2048, 0.1, 32000), (8192, 0.1, 32000), (8192, 0.0, 128_000))
SMALL = model_of(hidden=256, blocks=4, heads=8, sequence=128, vocabulary=1024)


def skipped() -> str | None:
    """Return why nothing can be measured here, or None."""
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    return None


def every(folder: Path, accelerator: str, part: str) -> Iterator[str]:
    """Yield the lines of a part of the results, or of all, as they are found."""
    import torch

    devices = torch.cuda.device_count()
    stack = f"torch {torch.__version__}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"
    yield f"{devices} x {torch.cuda.get_device_name()}, {stack}"
    if part in ("one", "all"):
        yield ""
        yield from measure(folder, accelerator)
        yield ""
        yield from options(folder, accelerator)
    if part in ("exact", "all"):
        yield ""
        yield from exact(folder, accelerator, SHARED if devices == 1 else devices, share=devices == 1)
    if part in ("several", "all"):
        yield ""
        yield from several(folder, accelerator, devices) if devices > 1 else ["SKIPPED: there is one device"]


def measure(folder: Path, accelerator: str) -> Iterator[str]:
    """Yield a step of the runtime and of a plain loop in 16 bits."""
    yield from ["| precision | runtime | plain loop | throughput ratio |", "|---|---|---|---|"]
    for precision in PRECISIONS:
        pipelines = [(4, 4, ((0, MODEL.layers, 1, accelerator),))]
        spec = spec_of(MODEL, pipelines, folder, precision=precision)
        task = {"contenders": ["runtime", "plain loop"], "warm_up": 3, "rounds": 10, "steps": 3}
        seconds = run_world(spec, folder / precision, **task)["seconds"]
        own, other = (statistics.median(seconds[name]) for name in ("runtime", "plain loop"))
        ratio = statistics.median(b / a for a, b in zip(seconds["runtime"], seconds["plain loop"], strict=True))
        yield f"| {precision} | {own:.3f} s | {other:.3f} s | {ratio:.2f} |"


def options(folder: Path, accelerator: str) -> Iterator[str]:
    """Yield step and peak memory of one device in bf16; any wait between backward pass and optimizer is an error."""
    yield from ["| tokens | dropout | vocabulary | step | peak memory |", "|---" * 5 + "|"]
    for number, (tokens, dropout, vocabulary) in enumerate(LONG):
        model = model_of(hidden=1024, blocks=6, heads=16, sequence=tokens, vocabulary=vocabulary)
        spec = spec_of(model, [(1, 4, ((0, model.layers, 1, accelerator),))], folder, precision="bf16")
        spec = replace(spec, training=replace(spec.training, dropout=dropout))
        task = {"contenders": ["runtime"], "warm_up": 3, "rounds": 5, "steps": 2, "strict": True}
        found = run_world(spec, folder / f"options-{number}", **task)
        step_s = statistics.median(found["seconds"]["runtime"])
        yield f"| {tokens} | {dropout} | {vocabulary} | {step_s:.3f} s | {found['peak_bytes'] / 2**30:.2f} GiB |"
    spec = spec_of(MODEL, [(4, 4, ((0, MODEL.layers, 1, accelerator),))], folder, precision="bf16")
    stalls = run_world(spec, folder / "stall", program="stall.py", saves=4)["stalls"]
    yield from ["", f"A checkpoint holds up training for {statistics.median(stalls):.3f} s."]


def exact(folder: Path, accelerator: str, devices: int, *, share: bool = False) -> Iterator[str]:
    """Yield how far plans of two ranks and more are from one process; with `share` all ranks use one device."""
    fitting = {name: spec for name, spec in _plans(folder, accelerator).items() if spec.world_size <= devices}

    def line(name: str) -> str:
        spec = fitting[name]
        task = {"contenders": [], "warm_up": 0, "rounds": 0, "steps": 0, "verify": True, "share": share}
        in_double = replace(spec, training=replace(spec.training, precision="fp64"))
        try:
            difference = run_world(in_double, folder / name.replace(" ", "-"), timeout_s=90.0, **task)["difference"]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return f"| {name} | FAILED: {str(error).strip().splitlines()[-1]} |"
        return f"| {name} | {difference:.1e} |"

    where = "NCCL over sockets, ranks share one device" if share else "NCCL"
    yield from [f"| plan ({where}) | largest difference from one process in float64 |", "|---|---|"]
    # Nothing is timed, so plans that share a device run side by side.
    with ThreadPoolExecutor(max_workers=4 if share else 1) as pool:
        yield from pool.map(line, fitting)


def several(folder: Path, accelerator: str, devices: int) -> list[str]:
    """Return times of replicas beside DDP, and of stages under every schedule."""
    lines = ["| replicas | ZeRO | sums | runtime | DDP | throughput ratio |", "|---" * 6 + "|"]
    whole = (4, 4, ((0, MODEL.layers, 1, accelerator),))
    for zero_stage, sums in ((0, "fp32"), (1, "fp32"), (2, "fp32"), (3, "fp32"), (0, "bf16")):
        spec = spec_of(MODEL, [whole] * devices, folder, precision="bf16")
        spec = replace(spec, zero_stage=zero_stage, training=replace(spec.training, sums=sums))
        task = {"contenders": ["runtime", "torch DDP"], "warm_up": 3, "rounds": 10, "steps": 3}
        seconds = run_world(spec, folder / f"replicas-{zero_stage}-{sums}", **task)["seconds"]
        own, other = (statistics.median(seconds[name]) for name in ("runtime", "torch DDP"))
        lines.append(f"| {devices} | {zero_stage} | {sums} | {own:.3f} s | {other:.3f} s | {other / own:.2f} |")
    lines += ["", "| stages | microbatches | schedule | step | throughput ratio |", "|---" * 5 + "|"]
    medians = []
    for schedule in SCHEDULES:
        ranges = devices * (2 if schedule == INTERLEAVED else 1)
        bounds = [round(number * MODEL.layers / ranges) for number in range(ranges + 1)]
        staged = (1, 2 * devices, tuple((first, end, 1, accelerator) for first, end in pairwise(bounds)))
        spec = replace(spec_of(MODEL, [staged], folder, precision="bf16"), pipeline_schedule=schedule)
        if schedule == INTERLEAVED:
            spec = _in_turns(spec)
        task = {"contenders": ["runtime"], "warm_up": 3, "rounds": 10, "steps": 3}
        medians.append(statistics.median(run_world(spec, folder / schedule, **task)["seconds"]["runtime"]))
        ratio = medians[0] / medians[-1]
        lines.append(f"| {devices} | {2 * devices} | {schedule} | {medians[-1]:.3f} s | {ratio:.2f} |")
    return lines


def _in_turns(spec: RunSpec) -> RunSpec:
    """Return a spec of one pipeline whose second half of stages stands on the devices of the first."""
    [pipeline] = spec.pipelines
    count = len(pipeline.stages) // 2
    stages = tuple(
        replace(first, later_ranges=((later.first_layer, later.end_layer),))
        for first, later in zip(pipeline.stages[:count], pipeline.stages[count:], strict=True)
    )
    pipelines = (replace(pipeline, stages=stages),)
    return replace(spec, pipelines=pipelines, nodes=spec.nodes[:count], pipeline_schedule=INTERLEAVED)


def _plans(folder: Path, accelerator: str) -> dict[str, RunSpec]:
    one = (2, 2, ((0, 6, 1, accelerator),))
    halves = (2, 4, ((0, 3, 1, accelerator), (3, 6, 1, accelerator)))

    def plan(*pipelines: Any, zero_stage: int = 0, zones: int = 1, **training: Any) -> RunSpec:
        spec = spec_of(SMALL, pipelines, folder)
        nodes = tuple(replace(node, zone=f"{number % zones}") for number, node in enumerate(spec.nodes))
        return replace(spec, zero_stage=zero_stage, nodes=nodes, training=replace(spec.training, **training))

    return {
        "two replicas, ZeRO-1": plan(one, one, zero_stage=1),
        "two replicas, ZeRO-2": plan(one, one, zero_stage=2),
        "two replicas, ZeRO-3": plan(one, one, zero_stage=3),
        "two stages, dropout": plan(halves, dropout=0.1),
        "two stages, zero-bubble": replace(plan(halves), pipeline_schedule=ZERO_BUBBLE),
        "two stages, interleaved": _in_turns(
            plan((2, 4, tuple((*cut, 1, accelerator) for cut in pairwise((0, 2, 3, 4, 6)))))
        ),
        "tp 2": plan((2, 4, ((0, 6, 2, accelerator),))),
        "tp 2 into tp 2": plan((2, 4, ((0, 3, 2, accelerator), (3, 6, 2, accelerator)))),
        "two zones of two": plan(one, one, one, one, zones=2),
        "two zones of two, ZeRO-1": plan(one, one, one, one, zones=2, zero_stage=1),
        "two zones of two, ZeRO-3": plan(one, one, one, one, zones=2, zero_stage=3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("one", "exact", "several", "all"), default="all")
    parser.add_argument("--accelerator", default="H200-141", help="the device's name in pricing/accelerators.csv")
    chosen = parser.parse_args()
    why = skipped()
    if why is not None:
        print(f"SKIPPED: {why}")
        return 0
    with tempfile.TemporaryDirectory() as name:
        for line in every(Path(name), chosen.accelerator, chosen.part):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
