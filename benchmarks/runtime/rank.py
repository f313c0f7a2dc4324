"""Rank program of a benchmark world: rank.py TASK.json RANK. Rank 0 prints one line of JSON at the end.

The contenders take turns, a few steps each, so that what else the machine does hits all of them alike.
"""

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
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", spec.world_size)):
        environment.os.environ[name] = str(value)
    import torch
    import torch.distributed as dist
    from contenders import CONTENDERS

    from sailor_runtime.training.pipeline import layout
    from sailor_runtime.training.pipeline.process_groups import World

    torch.manual_seed(0)
    world = World(spec, rank, layout.atoms(spec), backend="gloo" if not torch.cuda.is_available() else "nccl")
    made = {name: CONTENDERS[name](spec, rank, world) for name in task["contenders"]}
    if task.get("strict"):
        made["runtime"].forbid_waits()
    seconds: dict[str, list[float]] = {name: [] for name in made}
    losses = {name: [contender.step() for _ in range(task["warm_up"])] for name, contender in made.items()}
    turns = list(made.items())
    for number in range(task["rounds"]):
        # Whoever goes first has the caches that the other's last step left; so each goes first as often.
        for name, contender in turns if number % 2 == 0 else reversed(turns):
            dist.barrier()
            started = time.perf_counter()
            for _ in range(task["steps"]):
                losses[name].append(contender.step())
            seconds[name].append((time.perf_counter() - started) / task["steps"])
    difference = CONTENDERS["runtime"](spec, rank, world).difference(world) if task.get("verify") else None
    dist.barrier()
    if rank == 0:
        ends = {name: (values[0], values[-1]) for name, values in losses.items()}
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
        print(json.dumps({"seconds": seconds, "losses": ends, "peak_bytes": peak, "difference": difference}))
    world.close()


if __name__ == "__main__":
    main()
