"""How each kind of device computes.

A device of accelerator `CPU-fast` is one processor thread. `CPU-slow` is one thread that runs the forward and backward
kernels of every layer twice and discards one result: a declared, deterministic stand-in for a slower accelerator with
equal results. Every other accelerator is a CUDA device, unless a processor emulates it; see `stand_in`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import NodeSpec
from sailor_runtime.stand_in import runs_on_cpu

_CPU_KERNEL_RUNS = {"CPU-fast": 1, "CPU-slow": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The place of tensors, and how often a layer's kernels run."""

    torch_device: torch.device
    kernel_runs: int


def device_of(node: NodeSpec, index: int) -> Device:
    """Return device `index` of a node and set the threads of this process. Raises RefusedError for unknown devices."""
    if runs_on_cpu(node.accelerator):
        if node.accelerator.startswith("CPU-") and node.accelerator not in _CPU_KERNEL_RUNS:
            known = ", ".join(sorted(_CPU_KERNEL_RUNS))
            raise RefusedError(f"node {node.id} has accelerator {node.accelerator!r}; processor accelerators: {known}")
        torch.set_num_threads(1)
        return Device(torch_device=torch.device("cpu"), kernel_runs=_CPU_KERNEL_RUNS.get(node.accelerator, 1))
    if not torch.cuda.is_available():
        raise RefusedError(f"node {node.id} has accelerator {node.accelerator}, but torch finds no CUDA device there")
    if index >= torch.cuda.device_count():
        raise RefusedError(f"node {node.id} has {torch.cuda.device_count()} CUDA devices, the spec uses device {index}")
    torch.cuda.set_device(index)
    return Device(torch_device=torch.device("cuda", index), kernel_runs=1)


def use_in_thread(device: torch.device) -> None:
    """Make a device the current one of this thread. At first it is CUDA device 0, where any use takes memory."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
