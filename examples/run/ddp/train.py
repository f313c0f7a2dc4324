"""Distributed data parallel, as any torchrun script does it: resumes from its newest checkpoint, tells its steps."""

import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "30"))
checkpoints = Path(os.environ["SAILOR_CHECKPOINTS"])
leaving = False


def leave(signum, frame):
    global leaving
    leaving = True


signal.signal(signal.SIGTERM, leave)
cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).to(device)
replica = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
first = 0
found = sorted(checkpoints.glob("step-*.pt"), key=lambda path: int(path.stem.split("-")[1]))
if found:
    state = torch.load(found[-1], map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    first = state["step"]


def save(step):
    if rank == 0:
        staged = checkpoints / f"step-{step}.tmp"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, staged)
        staged.rename(checkpoints / f"step-{step}.pt")


for step in range(first + 1, STEPS + 1):
    torch.manual_seed(1000 * step + rank)
    batch = torch.randn(32, 64, device=device)
    loss = torch.nn.functional.mse_loss(replica(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    told = torch.tensor([loss.item(), float(leaving)])
    dist.all_reduce(told)
    if rank == 0:
        print(json.dumps({"step": step, "loss": told[0].item() / world, "tokens": 32 * world}))
    if step % 10 == 0 or step == STEPS or told[1] > 0:
        save(step)
    if told[1] > 0:
        break
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
dist.destroy_process_group()
