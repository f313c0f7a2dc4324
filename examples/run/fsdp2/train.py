"""Fully sharded data parallel with a sharded checkpoint, of which every node writes its own part."""

import json
import os
import re
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = int(os.environ.get("STEPS", "30"))
folder = Path(os.environ["SAILOR_CHECKPOINTS"])
cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cuda" if cuda else "cpu", (world,))
device = torch.device(mesh.device_type)

torch.manual_seed(0)
blocks = [torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)) for _ in range(4)]
model = torch.nn.Sequential(*blocks).to(device)
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def state():
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": torch.zeros((), dtype=torch.int64)}


first = 0
found = sorted(int(match[1]) for name in os.listdir(folder) if (match := re.fullmatch(r"step-(\d+)", name)))
if found:
    read = state()
    dcp.load(read, checkpoint_id=str(folder / f"step-{found[-1]}"))
    set_state_dict(model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"])
    first = int(read["step"])

for step in range(first + 1, STEPS + 1):
    torch.manual_seed(1000 * step + rank)
    batch = torch.randn(32, 64, device=device)
    loss = torch.nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(json.dumps({"step": step, "loss": total.item() / world, "tokens": 32 * world}))
    if step % 10 == 0:
        dcp.save({**state(), "step": torch.tensor(step)}, checkpoint_id=str(folder / f"step-{step}"))
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
dist.destroy_process_group()
