"""`python -m sailor_runtime.profile.rank TASK RESULTS RANK`: one rank process of one measuring world.

TASK is {kind, specs | link}. Rank 0 prints a line of JSON per measurement; the program that started it keeps them.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from sailor_runtime.profile.task import LinkTask
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.stand_in import runs_on_cpu
from sailor_runtime.training import environment

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    task, rank = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    specs = [RunSpec.from_json(json.dumps(raw)) for raw in task["specs"]]
    environment.prepare(specs[0], rank if task["kind"] == "layers" else 0, Path(sys.argv[1]).parent)
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch|deepspeed")
    try:
        _KINDS[task["kind"]](task, specs, rank)
    except RefusedError as error:
        print(f"{error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def _report_progress(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)  # noqa: T201


def _layers(task: dict[str, Any], specs: list[RunSpec], rank: int) -> None:
    import torch

    from sailor_runtime.profile import layers
    from sailor_runtime.training import trainer
    from sailor_runtime.training.pipeline import layout
    from sailor_runtime.training.pipeline.devices import device_of
    from sailor_runtime.training.pipeline.process_groups import World

    for spec in specs:
        trainer.check(spec)
    # Fails here, with the reason, if the device is missing.
    device = device_of(specs[0].node_of(rank), rank).torch_device
    backend = "gloo" if device.type == "cpu" else "nccl"
    world = World(specs[0], rank, layout.atoms(specs[0]), backend=backend)
    for spec in specs:
        try:
            found = layers.measure(spec, rank, world)
        except torch.cuda.OutOfMemoryError:
            # Larger microbatches need more memory; the others of a tp group can't continue without this rank either.
            return
        if found is not None:
            _report_progress({"microbatch_size": spec.pipelines[0].microbatch_size, **found})
    world.close()


def _memory(task: dict[str, Any], specs: list[RunSpec], rank: int) -> None:
    from sailor_runtime.profile import memory

    for spec in specs:
        size = spec.pipelines[0].microbatch_size
        _report_progress({"microbatch_size": size, "peak_bytes": memory.peak_bytes(spec.model, spec.training, size)})


def _link(task: dict[str, Any], specs: list[RunSpec], rank: int) -> None:
    from sailor_runtime.profile import links
    from sailor_runtime.training.pipeline.devices import device_of

    alone = task["link"]["end"] is None
    if alone and not runs_on_cpu(specs[0].nodes[0].accelerator):
        import torch

        if torch.cuda.device_count() < 2:
            # A machine with one device has no link of its own.
            if rank == 0:
                _report_progress({"points": []})
            return
    device = device_of(specs[0].nodes[0], rank if alone else 0)
    points = links.measure(LinkTask(**task["link"]), rank, device.torch_device)
    if rank == 0 or not alone:
        _report_progress({"points": points})


_KINDS = {"layers": _layers, "memory": _memory, "link": _link}

if __name__ == "__main__":
    sys.exit(main())
