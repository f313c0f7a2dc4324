"""The features of a layer's time: launches, FLOPs, and bytes moved."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.offer import Precision
from sailor_cloud.workload.models.layers import Attention, LayerCosts, gathered_share, layer_costs

ELEMENT_BYTES = {Precision.FP32: 4, Precision.TF32: 4, Precision.BF16: 2, Precision.FP16: 2}
REDUCED_DEGREES = (2, 4, 8)
FEATURES = (
    "overhead",
    "flops",
    "score_bytes",
    "hidden_bytes",
    "hidden_bytes_per_tp",
    "logit_bytes",
    *(f"all_reduce_bytes_tp{degree}" for degree in REDUCED_DEGREES),
)


class LayerKind(StrEnum):
    EMBEDDING = "embedding"
    BLOCK = "block"
    HEAD = "head"


def layer_features(
    decoder: Decoder, *, sequence_length: int, microbatch_size: int, tp: int, precision: Precision
) -> dict[LayerKind, NDArray[np.float64]]:
    """Return, per kind of layer, the features of one microbatch on one device, in the order of FEATURES.

    `flops` are those of the forward pass. Tensor-parallel degrees between the fitted ones count as the next larger one;
    the all-reduced tensor is the layer's hidden state.
    """
    costs = layer_costs(decoder, sequence_length, tp, attention=Attention.PLAIN)
    width = ELEMENT_BYTES[precision] * microbatch_size
    hidden = float(sequence_length * decoder.hidden_size * width)
    return {
        kind: _row(decoder, costs, layer, microbatch_size, width, hidden, tp)
        for kind, layer in ((LayerKind.EMBEDDING, 0), (LayerKind.BLOCK, 1), (LayerKind.HEAD, decoder.layers - 1))
    }


def _row(
    decoder: Decoder, costs: LayerCosts, layer: int, microbatch_size: int, width: int, hidden: float, tp: int
) -> NDArray[np.float64]:
    charged = next((degree for degree in REDUCED_DEGREES if tp <= degree), REDUCED_DEGREES[-1])
    # A block all-reduces four tensors over both passes.
    summed = hidden * (1.0 + sum(gathered_share(decoder)) / 4.0)
    reduced = [summed if tp > 1 and degree == charged else 0.0 for degree in REDUCED_DEGREES]
    return np.array(
        [
            1.0,
            costs.forward_flops[layer] * microbatch_size,
            costs.score_elements[layer] * width,
            hidden,
            hidden / tp,
            costs.loss_elements[layer] * width,
            *reduced,
        ]
    )
