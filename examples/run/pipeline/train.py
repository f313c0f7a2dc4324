"""Pipeline parallelism with torch.distributed.pipelining: a stage for each process, saved by each for itself."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

STEPS = int(os.environ.get("STEPS", "30"))
folder = Path(os.environ["SAILOR_CHECKPOINTS"])
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(rank)
part = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(device)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
stage = PipelineStage(part, rank, world, device)
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=torch.nn.functional.mse_loss)

# A step counts once every stage has it; each stage's file stands on its own node, and comes to all before a start.
first = 0
whole = [
    step
    for step in range(STEPS, 0, -1)
    if all((folder / f"step-{step}-stage-{other}.pt").exists() for other in range(world))
]
if whole:
    first = whole[0]
    state = torch.load(folder / f"step-{first}-stage-{rank}.pt", map_location=device)
    part.load_state_dict(state["part"])
    optimizer.load_state_dict(state["optimizer"])

for step in range(first + 1, STEPS + 1):
    torch.manual_seed(1000 * step)
    batch = torch.randn(32, 64, device=device)
    losses = []
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(batch)
    elif rank == world - 1:
        schedule.step(target=batch, losses=losses)
    else:
        schedule.step()
    optimizer.step()
    told = torch.tensor(sum(loss.item() for loss in losses) / 4, device=device)
    dist.broadcast(told, world - 1)
    if rank == 0:
        print(json.dumps({"step": step, "loss": told.item(), "tokens": 32}))
    if step % 10 == 0:
        staged = folder / f"step-{step}-stage-{rank}.tmp"
        torch.save({"part": part.state_dict(), "optimizer": optimizer.state_dict()}, staged)
        staged.rename(folder / f"step-{step}-stage-{rank}.pt")
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
dist.destroy_process_group()
