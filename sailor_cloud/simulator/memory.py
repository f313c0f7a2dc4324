"""Peak memory of a stage on one device, part by part, for any layer range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Optimizer
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator.engines import Engine
from sailor_cloud.workload import Attention, LayerCosts, layer_costs
from sailor_cloud.workload.features import ELEMENT_BYTES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Bytes per parameter of weight, gradient sum and optimizer state. Sums and master weights are fp32 at every precision,
# as sailor_runtime keeps them; weights in fp32 are their own master, unless ZeRO cuts it.
GRADIENT_BYTES = 4
# CPUAdam keeps its moments in the memory of the node; the device is charged for them all the same.
_MOMENT_BYTES = {Optimizer.ADAMW: 8, Optimizer.SGD: 4, Optimizer.CPU_ADAM: 8, Optimizer.FUSED_ADAM: 8}

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """What stages keep at one tp, microbatch size and choice of recomputation.

    Prefix arrays have shape [layers + 1] and are per device, activations of one microbatch. `boundary_bytes[i]` is the
    tensor of one microbatch that crosses a cut before layer i, 0 at both ends. A device that holds the whole model
    keeps a tied weight once: `tied_parameters` fewer.
    """

    zero_stage: int
    parameter_prefix: Ints
    activation_prefix_bytes: Floats
    working_bytes: Floats
    boundary_bytes: Floats
    tied_parameters: int
    weight_bytes: int
    optimizer_bytes_per_parameter: int
    bucket_bytes: float
    framework_bytes: int

    @property
    def layers(self) -> int:
        return len(self.parameter_prefix) - 1

    def parameters(self, first: Any, end: Any) -> Any:
        """Return the parameters that a device keeps for layers [first, end)."""
        whole = (np.asarray(first) == 0) & (np.asarray(end) == self.layers)
        return self.parameter_prefix[end] - self.parameter_prefix[first] - np.where(whole, self.tied_parameters, 0)

    def activation_bytes(self, first: Any, end: Any) -> Any:
        """Return what each microbatch in flight keeps of layers [first, end)."""
        return self.activation_prefix_bytes[end] - self.activation_prefix_bytes[first]

    def parts(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> dict[str, Any]:
        """Return the peak bytes of one device by part, as int64 of the inputs' shape.

        in_flight: microbatches whose activations are held (closed_form.in_flight). replicas: pipelines over which ZeRO
        cuts the optimizer state, from stage 2 on the gradients, in stage 3 the weights. Buffers: tensors on their way
        in and out, the copy of one gradient bucket, in half precision and from stage 2 on the gradients of one layer on
        their way to the sum, and in stage 3 the gathered weights of the layer at work and of the next one. Leaves out
        allocator fragmentation.
        """
        parameters = np.asarray(self.parameters(first, end))
        optimizer, gradient, weight = (replicas if self.zero_stage >= stage else 1 for stage in (1, 2, 3))
        gradients = -(-parameters * GRADIENT_BYTES // gradient)
        buckets = np.minimum(gradients, self.bucket_bytes) if replicas > 1 else np.zeros(parameters.shape)
        moving = 2 * (self.boundary_bytes[first] + self.boundary_bytes[end])
        if self.weight_bytes < GRADIENT_BYTES or gradient > 1:
            moving = moving + self._largest_layer(first, end) * self.weight_bytes
        if weight > 1:
            moving = moving + 2 * self._largest_layer(first, end) * self.weight_bytes
        kept = np.asarray(in_flight) * self.activation_bytes(first, end) + self._working(first, end)
        return {
            "weights": -(-parameters * self.weight_bytes // weight),
            "gradients": gradients,
            "optimizer": -(-parameters * self.optimizer_bytes_per_parameter // optimizer),
            "activations": np.rint(kept).astype(np.int64),
            "buffers": np.rint(moving + buckets).astype(np.int64),
            "framework": np.full(parameters.shape, self.framework_bytes, dtype=np.int64),
        }

    def total(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any:
        """Return the sum of the parts."""
        total: Any = sum(self.parts(first, end, in_flight=in_flight, replicas=replicas).values())
        return total

    def _largest_layer(self, first: Any, end: Any) -> Any:
        """Parameters of the largest layer of a range: blocks are alike, embedding and head are at the ends."""
        each = np.diff(self.parameter_prefix)
        inside = np.where(self._has_block(first, end), each[1], 0)
        at_ends = np.where(np.asarray(first) == 0, each[0], 0), np.where(np.asarray(end) == self.layers, each[-1], 0)
        return np.maximum(inside, np.maximum(*at_ends))

    def _has_block(self, first: Any, end: Any) -> Any:
        return np.minimum(end, self.layers - 1) > np.maximum(first, 1)

    def _working(self, first: Any, end: Any) -> Any:
        """Bytes that come back while one layer is recomputed: those of the largest layer of the range."""
        # All blocks are alike, so a range that holds any block needs one block's bytes.
        return np.where(self._has_block(first, end), self.working_bytes[1], 0.0)


def memory_table(
    decoder: Decoder,
    engine: Engine,
    *,
    sequence_length: int,
    precision: Precision,
    optimizer: Optimizer,
    tp: int,
    microbatch_size: int,
    recompute: Recompute,
    zero_stage: int,
    framework_bytes: int,
) -> MemoryTable:
    """Count what the stages of a decoder keep under an engine; `tp` must divide what it cuts."""
    costs = layer_costs(decoder, sequence_length, tp, attention=engine.attention)
    kept, working = _kept_elements(costs, recompute, engine.attention)
    weight = ELEMENT_BYTES[precision]
    elements = microbatch_size * weight
    master = 4 if zero_stage or weight < 4 else 0
    return MemoryTable(
        zero_stage=zero_stage,
        parameter_prefix=np.concatenate([[0], np.cumsum(costs.parameters)]).astype(np.int64),
        activation_prefix_bytes=_prefix(kept * elements + 4.0 * microbatch_size * costs.loss_elements),
        working_bytes=working * elements,
        boundary_bytes=np.concatenate([[0.0], costs.output_elements[:-1] * elements, [0.0]]),
        tied_parameters=costs.tied_parameters,
        weight_bytes=weight,
        optimizer_bytes_per_parameter=master + _MOMENT_BYTES[optimizer],
        bucket_bytes=engine.bucket_bytes,
        framework_bytes=framework_bytes,
    )


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _kept_elements(costs: LayerCosts, recompute: Recompute, attention: Attention) -> tuple[Floats, Floats]:
    """Return what stays of each layer until the backward pass, and what comes back of one layer at a time.

    Recomputed attention drops the scores; flash attention keeps none.
    """
    if recompute is Recompute.FULL:
        return costs.recomputed_elements, costs.working_elements
    dropped = np.zeros_like(costs.score_elements)
    if recompute is Recompute.SELECTIVE and attention is Attention.PLAIN:
        dropped = costs.score_elements
    return costs.activation_elements - dropped, dropped
