"""Tables of what stages cost, as prefix sums over layers, so that a search asks for any layer range at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import ProfileRef
from sailor_cloud.model.job import Optimizer
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.units import GIB
from sailor_cloud.workload import LayerCosts, layer_costs, tp_problem
from sailor_cloud.workload.features import ELEMENT_BYTES
from sailor_cloud.workload.stacks import Stack

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Bytes per parameter of weight, gradient sum and optimizer state. Sums and master weights are fp32 at every precision,
# as sailor_runtime keeps them; weights in fp32 are their own master, unless ZeRO cuts it.
_GRADIENT_BYTES = 4
_WEIGHT_BYTES = {Precision.FP32: 4, Precision.TF32: 4, Precision.BF16: 2, Precision.FP16: 2}
# CPUAdam keeps its moments in the memory of the node; the device is charged for them all the same.
_MOMENT_BYTES = {Optimizer.ADAMW: 8, Optimizer.SGD: 4, Optimizer.CPU_ADAM: 8, Optimizer.FUSED_ADAM: 8}

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """Stages of one accelerator at one tp, microbatch size and choice of recomputation.

    Prefix arrays have shape [layers + 1]; seconds are of one microbatch (forward, backward with what is recomputed) or
    of one optimizer step (update, before ZeRO). `parameter_prefix` and `activation_prefix_bytes` (of one microbatch)
    are per device; `gradient_prefix_bytes`, what pipelines sum, covers all tensor-parallel shards together, and with
    ZeRO-1 the weights that are gathered after the step, as if they were summed. `boundary_bytes[i]` is the
    tensor of one microbatch that crosses a cut before layer i, 0 at both ends. A device that holds the whole model
    keeps a tied weight once: `tied_parameters` fewer.
    """

    accelerator: Accelerator
    tp: int
    microbatch_size: int
    recompute: bool
    zero_stage: int
    forward_prefix_s: Floats
    backward_prefix_s: Floats
    update_prefix_s: Floats
    parameter_prefix: Ints
    gradient_prefix_bytes: Floats
    activation_prefix_bytes: Floats
    working_bytes: Floats
    boundary_bytes: Floats
    tied_parameters: int
    weight_bytes: int
    gradient_bytes_per_parameter: float
    optimizer_bytes_per_parameter: int
    stack: Stack
    bucket_bytes: float
    limit_bytes: int
    error_p50: float
    error_p90: float
    profile: ProfileRef

    @property
    def layers(self) -> int:
        return len(self.forward_prefix_s) - 1

    def forward_s(self, first: Any, end: Any) -> Any:
        return self.forward_prefix_s[end] - self.forward_prefix_s[first]

    def backward_s(self, first: Any, end: Any) -> Any:
        return self.backward_prefix_s[end] - self.backward_prefix_s[first]

    def compute_s(self, first: Any, end: Any) -> Any:
        """Return the seconds of forward plus backward of one microbatch through layers [first, end)."""
        return self.forward_s(first, end) + self.backward_s(first, end)

    def update_s(self, first: Any, end: Any, *, shards: int = 1) -> Any:
        """Return the seconds of the optimizer step; with ZeRO each of `shards` replicas updates its share."""
        return (self.update_prefix_s[end] - self.update_prefix_s[first]) / (shards if self.zero_stage else 1)

    def parameters(self, first: Any, end: Any) -> Any:
        """Return the parameters that a device keeps for layers [first, end)."""
        whole = (np.asarray(first) == 0) & (np.asarray(end) == self.layers)
        return self.parameter_prefix[end] - self.parameter_prefix[first] - np.where(whole, self.tied_parameters, 0)

    def gradient_bytes(self, first: Any, end: Any) -> Any:
        """Return the bytes that pipelines sum for layers [first, end), all tensor-parallel shards together."""
        return self.gradient_prefix_bytes[end] - self.gradient_prefix_bytes[first]

    @property
    def gathered_share(self) -> float:
        """The share of gradient_bytes that ZeRO-1 gathers after the optimizer step: it can't run beside a pass."""
        return 1.0 - _GRADIENT_BYTES / _summed_bytes(self.weight_bytes, self.zero_stage)

    def memory_parts(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> dict[str, Any]:
        """Return the peak bytes of one device by part, as int64 of the inputs' shape.

        in_flight: microbatches whose activations are held (closed_form.in_flight). replicas: pipelines over which
        ZeRO-1 cuts the optimizer state. Buffers: tensors on their way in and out, the copy of one gradient bucket, and
        in half precision the gradients of one layer on their way to the sum. Leaves out allocator fragmentation.
        """
        parameters = np.asarray(self.parameters(first, end))
        shards = replicas if self.zero_stage else 1
        activations = self.activation_prefix_bytes[end] - self.activation_prefix_bytes[first]
        gradients = parameters * _GRADIENT_BYTES
        buckets = np.minimum(gradients, self.bucket_bytes) if replicas > 1 else np.zeros(parameters.shape)
        moving = 2 * (self.boundary_bytes[first] + self.boundary_bytes[end])
        if self.weight_bytes < _GRADIENT_BYTES:
            moving = moving + self._largest_layer(first, end) * self.weight_bytes
        kept = np.asarray(in_flight) * activations + self._working(first, end)
        return {
            "weights": parameters * self.weight_bytes,
            "gradients": gradients,
            "optimizer": -(-parameters * self.optimizer_bytes_per_parameter // shards),
            "activations": np.rint(kept).astype(np.int64),
            "buffers": np.rint(moving + buckets).astype(np.int64),
            "framework": np.full(parameters.shape, self.stack.framework_bytes, dtype=np.int64),
        }

    def memory_bytes(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any:
        """Return the sum of memory_parts."""
        parts = self.memory_parts(first, end, in_flight=in_flight, replicas=replicas)
        total: Any = sum(parts.values())
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
        if not self.recompute:
            return 0.0
        # All blocks are alike, so a range that holds any block needs one block's bytes.
        return np.where(self._has_block(first, end), self.working_bytes[1], 0.0)


def _summed_bytes(weight_bytes: int, zero_stage: int) -> float:
    """Bytes per parameter that go round twice: gathering weights takes one pass of the ring, a sum two."""
    return _GRADIENT_BYTES + (weight_bytes / 2.0 if zero_stage else 0.0)


def stage_table(
    scenario: Scenario, accelerator: str, *, tp: int, microbatch_size: int, recompute: bool = False, zero_stage: int = 0
) -> StageTable:
    """Build the table of one kind of stage.

    Raises RequestError where tp doesn't divide what it must or the accelerator lacks the precision, and
    ProfileMissingError where nothing is known about its speed.
    """
    decoder, training = scenario.decoder, scenario.job.training
    problem = tp_problem(decoder, tp)
    if problem is not None:
        raise RequestError(problem)
    part = scenario.catalog.accelerator(accelerator)
    times = scenario.profiles.layer_times(
        part,
        decoder,
        sequence_length=training.sequence_length,
        microbatch_size=microbatch_size,
        tp=tp,
        precision=training.precision,
        attention=scenario.engine.attention,
    )
    costs = layer_costs(decoder, training.sequence_length, tp, attention=scenario.engine.attention)
    stack = scenario.profiles.stack(accelerator)
    again = _recomputed_s(times.forward_s) if recompute else 0.0
    weight = _WEIGHT_BYTES[training.precision]
    summed = _summed_bytes(weight, zero_stage)
    master = 4 if zero_stage or weight < 4 else 0
    return StageTable(
        accelerator=part,
        tp=tp,
        microbatch_size=microbatch_size,
        recompute=recompute,
        zero_stage=zero_stage,
        forward_prefix_s=_prefix(times.forward_s),
        backward_prefix_s=_prefix(times.backward_s + again),
        update_prefix_s=_prefix(times.update_s),
        parameter_prefix=np.concatenate([[0], np.cumsum(costs.parameters)]).astype(np.int64),
        gradient_prefix_bytes=_prefix(costs.parameters.astype(np.float64) * (tp * summed)),
        activation_prefix_bytes=_prefix(_activation_bytes(costs, training.precision, microbatch_size, recompute)),
        working_bytes=costs.working_elements * float(microbatch_size * ELEMENT_BYTES[training.precision]),
        boundary_bytes=_boundary_bytes(costs, training.precision, microbatch_size),
        tied_parameters=costs.tied_parameters,
        weight_bytes=weight,
        gradient_bytes_per_parameter=summed,
        optimizer_bytes_per_parameter=master + _MOMENT_BYTES[training.optimizer],
        stack=stack,
        bucket_bytes=scenario.engine.bucket_bytes,
        limit_bytes=int(part.memory_gib * GIB * stack.usable_fraction),
        error_p50=times.error_p50,
        error_p90=times.error_p90,
        profile=times.profile,
    )


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _recomputed_s(forward_s: Floats) -> Floats:
    """Blocks run their forward pass again; embedding and head keep what they need."""
    again = forward_s.copy()
    again[0] = again[-1] = 0.0
    return again


def _activation_bytes(costs: LayerCosts, precision: Precision, microbatch_size: int, recompute: bool) -> Floats:
    elements = costs.recomputed_elements if recompute else costs.activation_elements
    return np.asarray(microbatch_size * (elements * ELEMENT_BYTES[precision] + 4.0 * costs.loss_elements))


def _boundary_bytes(costs: LayerCosts, precision: Precision, microbatch_size: int) -> Floats:
    crossing = costs.output_elements * float(microbatch_size * ELEMENT_BYTES[precision])
    return np.concatenate([[0.0], crossing[:-1], [0.0]])
