"""The number of floating-point operations of a layer, counted by DeepSpeed's flops profiler while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.pipeline.stage import StageModule


class _Layer(nn.Module):
    """One layer in the form that the profiler accepts; its parameters stay where they are."""

    def __init__(self, module: StageModule, layer: int) -> None:
        super().__init__()
        self._run = module.layer
        self._layer = layer

    def forward(self, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        return self._run(self._layer, value, microbatch)


def forward_flops(module: StageModule, layer: int, value: Tensor | None, microbatch: Microbatch) -> int:
    """Return the operations of a layer's forward pass on this device; a multiplication and an addition are two.

    The profiler counts calls of torch's functions, so the result is valid for any kernels of the device. Attention
    counts in full, without regard to its mask. Collective if the layer is cut over several devices.
    """
    # Imported late: it takes half a second, and only a profile needs it.
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    wrapped = _Layer(module, layer)
    profiler: Any = FlopsProfiler(wrapped)
    profiler.start_profile()
    try:
        with torch.no_grad():
            wrapped(value, microbatch)
        return int(profiler.get_total_flops())
    finally:
        profiler.end_profile()
