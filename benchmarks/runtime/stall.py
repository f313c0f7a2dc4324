"""Rank program: how long training stands still when an asynchronous checkpoint begins. stall.py TASK.json RANK."""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path


def main() -> None:
    warnings.filterwarnings("ignore")
    task, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    from sailor_runtime.spec import RunSpec
    from sailor_runtime.training import environment

    spec = RunSpec.from_json(json.dumps(task["spec"]))
    environment.prepare(spec, rank, Path(sys.argv[1]).parent)
    import torch
    import torch.distributed as dist

    from sailor_runtime.training.checkpoint.checkpoint import Checkpoints
    from sailor_runtime.training.data.samples import open_samples
    from sailor_runtime.training.engine import Engine
    from sailor_runtime.training.optimizer.precision import precision_of
    from sailor_runtime.training.pipeline import layout
    from sailor_runtime.training.pipeline.devices import device_of
    from sailor_runtime.training.pipeline.process_groups import World

    atoms, place = layout.atoms(spec), layout.places(spec)[rank]
    device = device_of(spec.node_of(rank), 0)
    world = World(spec, rank, atoms, backend="nccl" if torch.cuda.is_available() else "gloo")
    precision = precision_of(spec.training.precision)
    engine = Engine(spec, place, world, atoms, open_samples(spec), device, precision)
    checkpoints = Checkpoints(spec.checkpoint.directory, 1, world, atoms)
    engine.step()
    stalls, saves = [], []
    for _ in range(task["saves"]):
        dist.barrier()
        started = time.perf_counter()
        checkpoints.begin(engine)
        own = torch.tensor(time.perf_counter() - started)
        engine.step()
        saved = checkpoints.wait()
        assert saved is not None
        saves.append(time.perf_counter() - started)
        dist.all_reduce(own, op=dist.ReduceOp.MAX)
        stalls.append(own.item())
    if rank == 0:
        print(json.dumps({"stalls": stalls, "saves": saves}))
    dist.barrier()
    world.close()


if __name__ == "__main__":
    main()
