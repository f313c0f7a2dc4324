"""A check of the hardware before hours of training are paid for: every device, one sum over all ranks, every link."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import PipelineSpec, RunSpec, StageSpec
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.process_groups import World

# Large enough that the rate dominates the round trip; a transfer of a few seconds on the slowest link worth using.
_BYTES = 8_000_000
_TIMED = 2
_TAG = 991


def preflight(spec: RunSpec, world: World, device: Device) -> dict[str, Any]:
    """Return the findings, the same on every rank. Raises RefusedError if a device or the sum is wrong.

    `links` has bytes per second between neighbouring stages, one sender and one receiver at a time.
    """
    begun = time.perf_counter()
    found = {"rank": world.rank, **_device(device.torch_device)}
    _sum(world, device.torch_device)
    links = []
    for pipeline in spec.pipelines:
        for before, after in neighbours(pipeline):
            seconds = _transfer_s(world, device.torch_device, before.ranks[0], after.ranks[0])
            rate = None if seconds is None else _BYTES / seconds
            links.append({"src_node": before.node, "dst_node": after.node, "bytes_per_s": rate})
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, {"device": found, "links": links}, group=world.everyone)
    return {
        "devices": [one["device"] for one in everyone],
        # Only the receiver of a link has timed it.
        "links": [
            next(one["links"][k] for one in everyone if one["links"][k]["bytes_per_s"]) for k in range(len(links))
        ],
        "seconds": time.perf_counter() - begun,
    }


def neighbours(pipeline: PipelineSpec) -> list[tuple[StageSpec, StageSpec]]:
    """Return the stages that send each other tensors, each pair once, in the direction of activations."""
    pairs = dict.fromkeys(pairwise(stage for stage, _ in pipeline.virtual_stages))
    return [(pipeline.stages[before], pipeline.stages[after]) for before, after in pairs]


def _device(device: torch.device) -> dict[str, Any]:
    """Run one kernel and return the device's facts. Raises RefusedError if its result is wrong."""
    try:
        ones = torch.ones(64, 64, device=device)
        result = float((ones @ ones).sum())
    except RuntimeError as error:
        raise RefusedError(f"no kernel runs on {device}: {error}; torch {torch.__version__}") from error
    if result != 64.0**3:
        raise RefusedError(f"a product of matrices on {device} gave {result} instead of {64.0**3}")
    if device.type != "cuda":
        return {"name": "processor", "torch": torch.__version__}
    capability = ".".join(str(part) for part in torch.cuda.get_device_capability(device))
    return {
        "name": torch.cuda.get_device_name(device),
        "capability": capability,
        "torch": torch.__version__,
        "driver": driver_version(),
    }


def driver_version(version_file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """Return the version of NVIDIA's kernel module, None if there is none; the file is part of the driver."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", version_file.read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def _sum(world: World, device: torch.device) -> None:
    value = torch.tensor([float(world.rank + 1)], device=device)
    dist.all_reduce(value, group=world.everyone)
    expected = world.size * (world.size + 1) / 2
    if float(value) != expected:
        raise RefusedError(f"the sum over all ranks is {float(value)} instead of {expected}")


def _transfer_s(world: World, device: torch.device, src: int, dst: int) -> float | None:
    """Return the shortest time of a transfer on its receiver, None on all others, who wait."""
    best = None
    if world.rank in (src, dst):
        tensor = torch.zeros(_BYTES // 4, device=device)
        answer = torch.zeros(1, device=device)
        for _ in range(_TIMED + 1):
            if world.rank == src:
                dist.recv(answer, dst, group=world.everyone, tag=_TAG)
                dist.send(tensor, dst, group=world.everyone, tag=_TAG)
                continue
            begun = time.perf_counter()
            dist.send(answer, src, group=world.everyone, tag=_TAG)
            dist.recv(tensor, src, group=world.everyone, tag=_TAG)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - begun
            best = seconds if best is None else min(best, seconds)
    dist.barrier(group=world.everyone)
    return best
