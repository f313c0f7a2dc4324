"""DeepSpeed with ZeRO 1: its launcher takes the machines and this one's rank by flags, so the job gives them."""

import argparse
import json
import os
import re
import time
from pathlib import Path

import deepspeed
import torch

STEPS = int(os.environ.get("STEPS", "30"))
folder = Path(os.environ["SAILOR_CHECKPOINTS"])
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
parser.parse_args()
cuda = torch.cuda.is_available()
deepspeed.init_distributed("nccl" if cuda else "gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
engine, _, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=list(model.parameters()),
    config={
        "train_micro_batch_size_per_gpu": 32,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
    },
)
first = 0
found = sorted(int(match[1]) for name in os.listdir(folder) if (match := re.fullmatch(r"step-(\d+)", name)))
if found:
    first = found[-1]
    engine.load_checkpoint(str(folder), tag=f"step-{first}")

for step in range(first + 1, STEPS + 1):
    torch.manual_seed(1000 * step + rank)
    batch = torch.randn(32, 64, device=engine.device)
    loss = torch.nn.functional.mse_loss(engine(batch), batch)
    engine.backward(loss)
    engine.step()
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    if rank == 0:
        print(json.dumps({"step": step, "loss": total.item() / world, "tokens": 32 * world}))
    if step % 10 == 0:
        engine.save_checkpoint(str(folder), tag=f"step-{step}", save_latest=False)
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
torch.distributed.destroy_process_group()
