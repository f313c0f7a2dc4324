"""Numeric formats: of layers, of weights, and the devices that support them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sailor_runtime.refusal import RefusedError

# Compute capability from which NVIDIA's tensor cores support bf16 and tf32 (Ampere).
_AMPERE = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """`compute` is the format of layers and transfers, `master` of weights, accumulated gradients and optimizer."""

    compute: torch.dtype
    master: torch.dtype
    scales_loss: bool = False
    tensor_float: bool = False


PRECISIONS = {
    "fp32": Precision(compute=torch.float32, master=torch.float32),
    "tf32": Precision(compute=torch.float32, master=torch.float32, tensor_float=True),
    "bf16": Precision(compute=torch.bfloat16, master=torch.float32),
    "fp16": Precision(compute=torch.float16, master=torch.float32, scales_loss=True),
    "fp64": Precision(compute=torch.float64, master=torch.float64),
}


def precision_of(name: str) -> Precision:
    """Return a precision by its name in the spec. Raises RefusedError for an unknown one."""
    if name not in PRECISIONS:
        raise RefusedError(f"precision {name!r} is not supported; supported: {', '.join(sorted(PRECISIONS))}")
    return PRECISIONS[name]


def set_up(name: str, device: torch.device) -> None:
    """Switch TF32 kernels on or off. Raises RefusedError if the device lacks the precision."""
    precision = precision_of(name)
    if device.type == "cpu":
        if precision.tensor_float:
            raise RefusedError("precision 'tf32' needs a CUDA device; use 'fp32' on processors")
        return
    modern = precision.tensor_float or precision.compute == torch.bfloat16
    capability = torch.cuda.get_device_capability(device)
    if modern and capability < _AMPERE:
        found = f"{torch.cuda.get_device_name(device)} has compute capability {capability[0]}.{capability[1]}"
        raise RefusedError(f"precision {name!r} needs compute capability 8.0, {found}; use 'fp16' or 'fp32'")
    torch.backends.cuda.matmul.allow_tf32 = precision.tensor_float
    torch.backends.cudnn.allow_tf32 = precision.tensor_float
