"""Times messages of many sizes between two ranks, in one direction at a time, like a pipeline's transfers."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.profile.task import LinkTask
from sailor_runtime.training.pipeline.store import open_store

_TIMEOUT = datetime.timedelta(minutes=5)
_WARM_UP = 3
_LEAST, _MOST, _WANTED_S = 5, 200, 0.5


def measure(task: LinkTask, end: int, device: torch.device) -> list[dict[str, float]]:
    """Return [{bytes, seconds}] of one way, both directions in turn; the other end calls it with the other number.

    Half a round trip of equal messages; the median over repeats. Creates its own world and leaves it.
    """
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=open_store(task.address, task.port, rank=end, size=2, timeout=_TIMEOUT),
        rank=end,
        world_size=2,
        timeout=_TIMEOUT,
    )
    try:
        return [_size(size, end, device) for size in sizes(task)]
    finally:
        dist.destroy_process_group()


def sizes(task: LinkTask) -> Iterator[int]:
    """Yield an almost empty message, for the round trip, then powers of two."""
    yield 8
    size = task.least_bytes
    while size <= task.most_bytes:
        yield size
        size *= 2


def _size(nbytes: int, end: int, device: torch.device) -> dict[str, float]:
    value = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    for _ in range(_WARM_UP):
        first_s = _round(value, end)
    repeats = torch.tensor([min(_MOST, max(_LEAST, int(_WANTED_S / max(first_s, 1e-6))))], device=device)
    dist.broadcast(repeats, 0)
    seconds = statistics.median(_round(value, end) for _ in range(int(repeats.item())))
    return {"bytes": nbytes, "seconds": seconds / 2.0}


def _round(value: Tensor, end: int) -> float:
    started = time.perf_counter()
    if end == 0:
        dist.send(value, 1)
        dist.recv(value, 1)
    else:
        dist.recv(value, 0)
        dist.send(value, 0)
    if value.device.type == "cuda":
        torch.cuda.synchronize(value.device)
    return time.perf_counter() - started
