"""How many floating-point operations a layer makes, counted by DeepSpeed's flops profiler while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.pipeline.stage import StageModule


class _Layer(nn.Module):
    """One layer in the form that the profiler takes; its parameters stay where they are."""

    def __init__(self, module: StageModule, layer: int) -> None:
        super().__init__()
        self._run = module.layer
        self._layer = layer

    def forward(self, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        return self._run(self._layer, value, microbatch)


def forward_flops(module: StageModule, layer: int, value: Tensor | None, microbatch: Microbatch) -> int:
    """Return the operations of a layer's forward pass on this device; a multiplication and an addition are two.

    The profiler sees calls of torch's functions, so what it counts holds for the device's kernels whatever those are.
    Attention counts whole, without regard to its mask. Collective where the layer is cut over several devices.
    """
    # Imported here, since it takes half a second that only a profile needs.
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
