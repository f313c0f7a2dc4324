"""Whole models on one CUDA device: iteration and memory, as a table that the simulator's benchmark predicts.

python benchmarks/runtime/gpu_models.py --tasks FILE
python benchmarks/runtime/gpu_models.py FILE --accelerator NAME -o measured.csv
python benchmarks/simulator_accuracy/run.py --measurements measured.csv

The first writes what is to be measured, where sailor_cloud is installed. The second measures it on the node with the
device, where torch, transformers and sailor_runtime are enough. The third holds the simulator's predictions, with the
constants that it ships, against the rows. Models that are too large for one device are cut to their first blocks.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worlds import spec_of

from sailor_runtime.spec import ModelSpec, RunSpec, model_from_dict

WARM_UP, STEPS, MICROBATCHES = 3, 10, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A preset, cut to so many blocks (None for all), and how it is trained."""

    model: str
    blocks: int | None
    tokens: int
    microbatch_sizes: tuple[int, ...]
    precision: str = "bf16"
    recompute: bool = False


CASES = (
    Case(model="gpt2", blocks=None, tokens=1024, microbatch_sizes=(1, 4, 16)),
    Case(model="gpt2-medium", blocks=None, tokens=1024, microbatch_sizes=(1, 8)),
    Case(model="opt-350m", blocks=None, tokens=2048, microbatch_sizes=(2, 8)),
    Case(model="opt-1.3b", blocks=None, tokens=2048, microbatch_sizes=(1, 2, 4, 8)),
    Case(model="opt-1.3b", blocks=None, tokens=2048, microbatch_sizes=(2, 8), precision="fp16"),
    Case(model="opt-1.3b", blocks=None, tokens=2048, microbatch_sizes=(2, 4), precision="tf32"),
    Case(model="opt-1.3b", blocks=None, tokens=2048, microbatch_sizes=(2,), precision="fp32"),
    Case(model="opt-1.3b", blocks=None, tokens=2048, microbatch_sizes=(8,), recompute=True),
    Case(model="gpt2-xl", blocks=None, tokens=1024, microbatch_sizes=(1, 4, 8)),
    Case(model="gpt-neo-2.7b", blocks=None, tokens=2048, microbatch_sizes=(1, 2)),
    Case(model="opt-6.7b", blocks=8, tokens=2048, microbatch_sizes=(1, 4)),
    Case(model="llama-3-8b", blocks=6, tokens=4096, microbatch_sizes=(1, 2)),
    Case(model="llama-3-8b", blocks=6, tokens=8192, microbatch_sizes=(1,)),
    Case(model="llama-3-8b", blocks=6, tokens=8192, microbatch_sizes=(2,), recompute=True),
)


def tasks() -> list[dict[str, Any]]:
    """Return every case with the sizes of its model."""
    from sailor_cloud.launch.fleet.run_spec import model_spec
    from sailor_cloud.model.job import ModelSource
    from sailor_cloud.workload import decoder

    found = []
    for case in CASES:
        whole = decoder(ModelSource(preset=case.model))
        sizes = dataclasses.replace(model_spec(whole), blocks=case.blocks or whole.blocks)
        found.append({"case": dataclasses.asdict(case), "model": dataclasses.asdict(sizes), "gated": whole.gated_mlp})
    return found


def measure(rows: list[dict[str, Any]], accelerator: str, output: Path, *, backend: str) -> None:
    """Train every case for some steps in this process, and write a row after each."""
    from sailor_runtime.training import engine as engines
    from sailor_runtime.training import environment as settings
    from sailor_runtime.training.pipeline import layout
    from sailor_runtime.training.pipeline.process_groups import World

    with tempfile.TemporaryDirectory() as name, output.open("w", encoding="utf-8", newline="") as file:
        writer = world = None
        for row in rows:
            case, model = Case(**row["case"]), model_from_dict(row["model"])
            for size in case.microbatch_sizes:
                spec = _spec(case, model, size, accelerator, Path(name))
                if world is None:
                    settings.prepare(spec, 0, Path(name))
                    engines.first_weights = _quick_weights  # type: ignore[assignment]
                    world = World(spec, 0, layout.atoms(spec), backend=backend)
                started = time.perf_counter()
                try:
                    found = _one(spec, world)
                except Exception as error:
                    print(f"{case.model} of {size}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    _empty()
                    continue
                line = _row(row, case, size, accelerator, found)
                if writer is None:
                    writer = csv.DictWriter(file, list(line), lineterminator="\n")
                    writer.writeheader()
                writer.writerow(line)
                file.flush()
                seconds = time.perf_counter() - started
                rounded = {key: round(value, 4) for key, value in found.items()}
                print(f"{case.model} {case.precision} {case.tokens} x {size}: {rounded} ({seconds:.0f} s)", flush=True)


def _spec(case: Case, model: ModelSpec, size: int, accelerator: str, folder: Path) -> RunSpec:
    model = dataclasses.replace(model, max_positions=max(model.max_positions, case.tokens))
    pipelines = [(size, MICROBATCHES, ((0, model.layers, 1, accelerator),))]
    spec = spec_of(model, pipelines, folder, precision=case.precision)
    if case.recompute:
        [pipeline] = spec.pipelines
        stage = dataclasses.replace(pipeline.stages[0], recompute=tuple(range(1, model.layers - 1)))
        spec = dataclasses.replace(spec, pipelines=(dataclasses.replace(pipeline, stages=(stage,)),))
    return dataclasses.replace(spec, training=dataclasses.replace(spec.training, sequence_length=case.tokens))


def _one(spec: Any, world: Any) -> dict[str, float]:
    import torch

    from sailor_runtime.training.data.samples import open_samples
    from sailor_runtime.training.engine import Engine
    from sailor_runtime.training.optimizer import precision
    from sailor_runtime.training.pipeline import layout
    from sailor_runtime.training.pipeline.devices import device_of

    _empty()
    device = device_of(spec.nodes[0], 0)
    precision.set_up(spec.training.precision, device.torch_device)
    on_cuda = device.torch_device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    atoms, place = layout.atoms(spec), layout.places(spec)[0]
    chosen = precision.precision_of(spec.training.precision)
    engine = Engine(spec, place, world, atoms, open_samples(spec), device, chosen)
    for _ in range(WARM_UP):
        engine.step()
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    found = {"iteration_s": statistics.median(seconds)}
    if on_cuda:
        free, total = torch.cuda.mem_get_info()
        found["peak_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        found["device_gib"] = (total - free) / 2**30
    return found


def _empty() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _quick_weights(model: Any, seed: int) -> Any:
    """Return weights that are drawn where they are used; the values of billions of them take minutes on a processor."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(seed)

    def whole(spec: Any, dtype: Any) -> Any:
        return (0.02 * torch.randn(spec.shape, generator=generator, device=device)).to(dtype)

    return whole


def _row(task: dict[str, Any], case: Case, size: int, accelerator: str, found: dict[str, float]) -> dict[str, Any]:
    import torch

    model = task["model"]
    batch = size * MICROBATCHES
    cut = "" if case.blocks is None else f"-{case.blocks}-blocks"
    recompute = "full" if case.recompute else "none"
    return {
        "id": f"{case.model}{cut}-{case.tokens}x{size}-{case.precision}-{recompute}",
        "source": "benchmarks/runtime/gpu_models.py",
        "source_date": time.strftime("%Y-%m-%d"),
        "trust": "high",
        "framework": "sailor_runtime",
        "model": f"{case.model}{cut}",
        "n_layers": model["blocks"],
        "hidden_size": model["hidden_size"],
        "n_heads": model["heads"],
        "n_kv_heads": model["kv_heads"],
        "ffn_size": model["ffn_size"],
        "ffn_matrices": 3 if task["gated"] else 2,
        "vocab_size": model["vocab_size"],
        "tied": int(model["tied_head"]),
        "sequence_length": case.tokens,
        "gpu": accelerator,
        "n_gpus": 1,
        "gpus_per_node": 1,
        "precision": case.precision,
        "tp": 1,
        "pp": 1,
        "dp": 1,
        "zero_stage": 0,
        "microbatch_size": size,
        "global_batch_size": batch,
        "recompute": recompute,
        "attention": "flash" if case.precision in ("bf16", "fp16") else "plain",
        "compile": 0,
        "tokens_per_s_per_gpu": batch * case.tokens / found["iteration_s"],
        **found,
        "note": f"torch {torch.__version__}",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="what --tasks wrote")
    parser.add_argument("--tasks", type=Path, help="write what is to be measured")
    parser.add_argument("--accelerator", default="H100-80", help="the device's name in pricing/accelerators.csv")
    parser.add_argument("--only", help="cases whose model's name begins so")
    parser.add_argument("-o", "--output", type=Path, default=Path("measured.csv"))
    chosen = parser.parse_args()
    if chosen.tasks is not None:
        chosen.tasks.write_text(json.dumps(tasks(), indent=1) + "\n", encoding="utf-8")
        return 0
    if chosen.file is None:
        parser.error("name the file that --tasks wrote")
    warnings.filterwarnings("ignore")
    import torch

    on_cpu = chosen.accelerator.startswith("CPU-")
    if not on_cpu and not torch.cuda.is_available():
        print(f"SKIPPED: torch {torch.__version__} finds no CUDA device")
        return 0
    rows = [
        row
        for row in json.loads(chosen.file.read_text(encoding="utf-8"))
        if row["case"]["model"].startswith(chosen.only or "")
    ]
    measure(rows, chosen.accelerator, chosen.output, backend="gloo" if on_cpu else "nccl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
