"""Layer times in fp32 and tf32 from datasheet figures alone, for accelerators without a profile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload.features import ELEMENT_BYTES, FEATURES, REDUCED_DEGREES, LayerKind
from sailor_cloud.workload.fit import NOTHING_KNOWN, Guess
from sailor_cloud.workload.models.layers import Attention, layer_costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Shares of datasheet rates that layers reach: FLOP/s on CUDA cores and on tensor cores, memory, device links.

    `launch_s` is per layer and pass; plain attention passes `score_passes` times over its scores.
    """

    cores: float
    tensor_cores: float
    memory: float
    link: float
    launch_s: float
    score_passes: float


# Fitted on 213 configurations of 7 GPUs, all in fp32 and tf32; errors are those of accelerators held out in turn
# (benchmarks/results/compute_profiles.md).
FITTED = Efficiencies(cores=1.0, tensor_cores=0.93, memory=0.65, link=0.175, launch_s=2.6e-4, score_passes=6.9)
# The shares of tensor cores and NVLink that published runs in half precision reach (compute_profiles/kernels.csv, mean
# of V100, A100 and H100); an initial guess for fits of the owner's timings.
HALF = replace(FITTED, tensor_cores=0.62, link=0.88)
ERROR_P50 = 0.16
ERROR_P90 = 0.46

# One direction of a x16 slot in bytes per second, by PCIe generation (PCI-SIG rates after encoding).
_PCIE_BYTES_PER_S = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
# Adam reads weight, gradient and two moments and writes weight and moments, all in fp32.
_UPDATE_BYTES_PER_PARAMETER = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineTimes:
    """Seconds per layer of one microbatch; `update_s` is for one optimizer step."""

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    update_s: NDArray[np.float64]


def roofline_times(
    accelerator: Accelerator,
    decoder: Decoder,
    *,
    sequence_length: int,
    microbatch_size: int,
    tp: int,
    precision: Precision,
    attention: Attention = Attention.PLAIN,
    efficiencies: Efficiencies | None = None,
) -> RooflineTimes:
    """Return layer times as FLOPs over reachable FLOP/s plus bytes over reachable bytes/s plus launches.

    It is a sum, not a maximum, since the kernels of a layer run one after another. Raises RequestError if the
    accelerator lacks the precision.
    """
    peak = accelerator.peak_tflops(precision)
    if peak is None:
        raise RequestError(f"{accelerator.name} can't compute in {precision}")
    efficiencies = efficiencies or _known(precision)
    costs = layer_costs(decoder, sequence_length, tp, attention=attention)
    width = ELEMENT_BYTES[precision]
    memory = accelerator.memory_bandwidth_gb_per_s * 1e9 * efficiencies.memory
    # Activations are written and read once; kept scores count by their passes instead.
    scores = costs.score_elements if attention is Attention.PLAIN else np.zeros_like(costs.score_elements)
    moved = 2.0 * (costs.activation_elements - scores) + costs.loss_elements + efficiencies.score_passes * scores
    traffic = (moved * microbatch_size + costs.parameters) * width
    hidden_bytes = costs.output_elements * width * microbatch_size
    reduced = hidden_bytes * _all_reduce_s_per_byte(accelerator, tp, efficiencies.link)
    # The embedding reduces once, in the forward pass; a block twice in each pass.
    reduced[0] /= 2.0
    share = efficiencies.cores if precision is Precision.FP32 else efficiencies.tensor_cores
    rate = peak * 1e12 * share
    launch = efficiencies.launch_s
    forward = costs.forward_flops * microbatch_size / rate + traffic / memory + launch + reduced
    backward = costs.backward_flops * microbatch_size / rate + 2.0 * traffic / memory + 2.0 * launch + reduced
    backward[0] -= reduced[0]
    update = costs.trainable.astype(np.float64) * (_UPDATE_BYTES_PER_PARAMETER / memory)
    return RooflineTimes(forward_s=forward, backward_s=backward, update_s=update)


def feature_guess(accelerator: Accelerator, precision: Precision, *, efficiencies: Efficiencies | None = None) -> Guess:
    """Return the roofline in the features of a fit, for GPT-2 blocks with plain attention, and heads.

    Within 2 % of `roofline_times`, which also reads the weights. If the accelerator lacks the precision, all
    coefficients are zero.
    """
    peak = accelerator.peak_tflops(precision)
    if peak is None:
        return NOTHING_KNOWN
    efficiencies = efficiencies or _known(precision)
    share = efficiencies.cores if precision is Precision.FP32 else efficiencies.tensor_cores
    per_byte = 1.0 / (accelerator.memory_bandwidth_gb_per_s * 1e9 * efficiencies.memory)
    common = {"overhead": efficiencies.launch_s, "flops": 1e-12 / (peak * share)}
    # A block keeps 4 hidden states whole and 12 cut over the devices, a head 2; each is written and read.
    block = {
        **common,
        "score_bytes": efficiencies.score_passes * per_byte,
        "hidden_bytes": 8.0 * per_byte,
        "hidden_bytes_per_tp": 24.0 * per_byte,
    }
    head = {**common, "hidden_bytes": 4.0 * per_byte, "logit_bytes": 3.0 * per_byte}
    reduced = {
        f"all_reduce_bytes_tp{degree}": _all_reduce_s_per_byte(accelerator, degree, efficiencies.link)
        for degree in REDUCED_DEGREES
    }
    return Guess(
        seconds_per_flop=1e-12 / peak,
        coefficients={
            LayerKind.BLOCK: (_in_order({**block, **reduced}), _in_order({**_doubled(block), **reduced})),
            LayerKind.HEAD: (_in_order(head), _in_order(_doubled(head))),
        },
    )


def _known(precision: Precision) -> Efficiencies:
    return HALF if precision in (Precision.BF16, Precision.FP16) else FITTED


def _doubled(coefficients: dict[str, float]) -> dict[str, float]:
    return {name: 2.0 * value for name, value in coefficients.items()}


def _in_order(coefficients: dict[str, float]) -> NDArray[np.float64]:
    return np.array([coefficients.get(name, 0.0) for name in FEATURES])


def _all_reduce_s_per_byte(accelerator: Accelerator, tp: int, efficiency: float) -> float:
    """Two all-reduces of the hidden state over the devices of a node, as a ring in one direction."""
    nvlink = accelerator.nvlink_gb_per_s
    slot = _PCIE_BYTES_PER_S[accelerator.pcie_generation or 3]
    link = (nvlink * 1e9 / 2.0 if nvlink else slot) * efficiency
    return 2.0 * (2.0 * (tp - 1) / tp) / link
