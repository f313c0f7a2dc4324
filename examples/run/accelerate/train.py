"""Accelerate: its launcher takes the number of machines and this one's rank by flags, so the job gives them."""

import json
import os
import re
import time
from pathlib import Path

import torch
from accelerate import Accelerator

STEPS = int(os.environ.get("STEPS", "30"))
folder = Path(os.environ["SAILOR_CHECKPOINTS"])
accelerator = Accelerator(cpu=not torch.cuda.is_available())
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

first = 0
found = sorted(int(match[1]) for name in os.listdir(folder) if (match := re.fullmatch(r"step_(\d+)", name)))
if found:
    first = found[-1]
    accelerator.load_state(str(folder / f"step_{first}"))

for step in range(first + 1, STEPS + 1):
    torch.manual_seed(1000 * step + accelerator.process_index)
    batch = torch.randn(32, 64, device=accelerator.device)
    loss = torch.nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    mean = accelerator.gather(loss.detach()).mean().item()
    if accelerator.is_main_process:
        print(json.dumps({"step": step, "loss": mean, "tokens": 32 * accelerator.num_processes}))
    if step % 10 == 0:
        accelerator.save_state(str(folder / f"step_{step}"))
    time.sleep(float(os.environ.get("PAUSE_S", "0")))
accelerator.end_training()
