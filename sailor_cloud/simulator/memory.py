"""Peak memory of a stage on one device, part by part, for any layer range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import Optimizer
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator.engine import Engine, MemoryRule, Selective
from sailor_cloud.workload import Attention, LayerCosts, layer_costs
from sailor_cloud.workload.features import ELEMENT_BYTES, LayerKind
from sailor_cloud.workload.stacks import MemoryOverheads

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Gradients are summed in fp32 at every precision, as in sailor_runtime.
GRADIENT_BYTES = 4
# CPUAdam keeps its moments in the node's memory; the device is charged for them anyway.
_MOMENT_BYTES = {Optimizer.ADAMW: 8, Optimizer.SGD: 4, Optimizer.CPU_ADAM: 8, Optimizer.FUSED_ADAM: 8}

# The last meeting point of the islands, and a momentum, both in fp32.
_OUTER_BYTES = 8


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of weights, gradients and optimizer state of one device, and of the buffers that depend on them."""

    weights: Any
    gradients: Any
    optimizer: Any
    buffers: Any

    def of(self, stage: int) -> States:
        """Return the bytes of one of the stages."""
        every = (self.weights, self.gradients, self.optimizer, self.buffers)
        return States(*(each[stage] if np.ndim(each) else each for each in every))


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that depend on the microbatch size: of one microbatch, and of tensors in transit."""

    activations: Any
    passed: Any

    def of(self, stage: int) -> Held:
        """Return the bytes of one of the stages, which are the last axis."""
        return Held(*(each[..., stage] for each in (self.activations, self.passed)))


class StageMemoryTable(Protocol):
    """Memory of stages at one tp, microbatch size and choice of recomputation; shapes, units as in MemoryTable."""

    @property
    def activation_prefix_bytes(self) -> Floats: ...

    @property
    def boundary_bytes(self) -> Floats: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def measured(self) -> bool: ...

    @property
    def tied_parameters(self) -> int: ...

    @property
    def tied_trainable(self) -> int: ...

    def parameters(self, first: Any, end: Any) -> Any: ...

    def activation_bytes(self, first: Any, end: Any) -> Any: ...

    def states(self, first: Any, end: Any, replicas: int) -> States: ...

    def held(self, first: Any, end: Any) -> Held: ...

    def sum_bytes(self, states: States, held: Held) -> Any: ...

    def needed_bytes(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any: ...

    def peak_parts(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """The memory of stages at one tp, microbatch size and choice of recomputation.

    Prefix arrays have shape [layers + 1] and are per device, activations of one microbatch. `boundary_bytes[i]` is the
    tensor of one microbatch that crosses a cut before layer i, 0 at both ends. A device with the whole model keeps a
    tied weight once: `tied_parameters` fewer. `trainable_prefix` and `tied_trainable` count parameters with gradients.
    Weights of `weight_bytes` compute; `stored_bytes` are kept, sharded by ZeRO-3. `gathered_bytes` exist if one stage
    is the whole pipeline. The allocator holds a share `reserve` on top of all tensors, at least a share `fragments`.
    `factor`: the tensors' bytes in the owner's runs relative to the counted ones; `measured` as in StageMemory.
    """

    zero_stage: int
    parameter_prefix: Ints
    activation_prefix_bytes: Floats
    working_bytes: Floats
    boundary_bytes: Floats
    gathered_bytes: float
    tied_parameters: int
    trainable_prefix: Ints
    tied_trainable: int
    weight_bytes: int
    stored_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    rule: MemoryRule
    bucket_bytes: float
    reserve: float
    fragments: float
    framework_bytes: int
    limit_bytes: int
    factor: float
    measured: bool
    apart: bool = False

    @property
    def layers(self) -> int:
        return len(self.parameter_prefix) - 1

    def parameters(self, first: Any, end: Any) -> Any:
        """Return the parameters that a device keeps for layers [first, end)."""
        tied = np.where(self._is_whole(first, end), self.tied_parameters, 0)
        return self.parameter_prefix[end] - self.parameter_prefix[first] - tied

    def trainable(self, first: Any, end: Any) -> Any:
        """Return the number of a device's parameters in layers [first, end) with gradients and optimizer state."""
        tied = np.where(self._is_whole(first, end), self.tied_trainable, 0)
        return self.trainable_prefix[end] - self.trainable_prefix[first] - tied

    def activation_bytes(self, first: Any, end: Any) -> Any:
        """Return the bytes that each microbatch in flight adds for layers [first, end)."""
        return self._kept_bytes(first, end) * (self.factor * (1.0 + self.fragments))

    def needed_bytes(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any:
        """Return the bytes that one device must have, as int64 of the inputs' shape; linear in `in_flight`.

        in_flight: microbatches whose activations are held (closed_form.in_flight). replicas: pipelines over which ZeRO
        shards the optimizer state, from stage 2 on the gradients, in stage 3 the weights.
        """
        return self.sum_bytes(self.states(first, end, replicas), self.held(first, end, in_flight))

    def sum_bytes(self, states: States, held: Held) -> Any:
        """Return `needed_bytes` from its parts for the same layers."""
        tensors: Any = sum(self._tensors(states, held).values())
        return tensors + np.rint(tensors * self.fragments).astype(np.int64) + self.framework_bytes

    def held(self, first: Any, end: Any, in_flight: ArrayLike = 1) -> Held:
        """Return the bytes that depend on the microbatch size; see needed_bytes."""
        kept = np.asarray(in_flight) * self._kept_bytes(first, end) + self._working(first, end)
        return Held(self._needed(kept), 2 * (self.boundary_bytes[first] + self.boundary_bytes[end]))

    def peak_parts(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> dict[str, Any]:
        """Return the peak bytes of one device by part, as int64 of the inputs' shape; see needed_bytes.

        Buffers: tensors in transit; buckets of gradients; one layer's gradients in transit if sums are separate or
        sharded; in stage 3 the gathered weights of the current and the next layer. Allocator: its memory beyond the
        tensors, and inputs gathered ahead; it gives back what doesn't fit.
        """
        parts = self._tensors(self.states(first, end, replicas), self.held(first, end, in_flight))
        return self._with_overheads(parts, np.where(self._is_whole(first, end), self.gathered_bytes, 0.0))

    def peak_parts_of_ranges(
        self, first: Ints, end: Ints, *, in_flight: Ints, outputs: NDArray[np.bool_], replicas: int
    ) -> dict[str, Any]:
        """Return the peak bytes of one device that has several layer ranges; inputs have one shape [ranges].

        outputs: whether a range's output stays until its backward pass; it does unless its last layer is recomputed.
        One range works at a time, and one layer's gradients are in transit, but buckets count for each.
        """
        tensors = self._tensors(self.states(first, end, replicas), self.held(first, end, in_flight))
        parts = {name: each.sum() for name, each in tensors.items()}
        moving = np.broadcast_to(self._in_transit(first, end, replicas), np.shape(first))
        parts["buffers"] -= self._needed(moving.sum() - moving.max())
        working = self._working(first, end)
        kept = (in_flight * (self._kept_bytes(first, end) + outputs * self.boundary_bytes[end])).sum()
        parts["activations"] = np.rint(self.factor * (kept + working.max())).astype(np.int64)
        return self._with_overheads(parts, np.zeros(()))

    def _with_overheads(self, parts: dict[str, Any], ahead: Any) -> dict[str, Any]:
        """Add the memory besides tensors; `ahead`: bytes of inputs that are gathered ahead."""
        tensors: Any = sum(parts.values())
        least = np.rint(tensors * self.fragments).astype(np.int64)
        held = np.rint((tensors + ahead) * (1.0 + self.reserve)).astype(np.int64) - tensors
        parts["allocator"] = np.clip(self.limit_bytes - self.framework_bytes - tensors, least, np.maximum(held, least))
        parts["framework"] = np.full(tensors.shape, self.framework_bytes, dtype=np.int64)
        return parts

    def states(self, first: Any, end: Any, replicas: int) -> States:
        """Return a device's state for layers [first, end), independent of microbatch size and recomputation."""
        parameters = np.asarray(self.parameters(first, end))
        # Nothing is sharded over islands, whose places are unknown here.
        sharers = 1 if self.apart else replicas
        optimizer, gradient, weight = (sharers if self.zero_stage >= stage else 1 for stage in (1, 2, 3))
        trainable = np.asarray(self.trainable(first, end))
        by_layer = self.rule.by_layer and self.zero_stage >= 2
        # With ZeRO-3 only the optimizer keeps its share of the weights.
        stored = 0 if by_layer and self.zero_stage == 3 else self.stored_bytes
        whole: Any = 0
        if by_layer:
            whole = np.where((np.asarray(first) == 0) | (np.asarray(end) == self.layers), self.tied_trainable, 0)
        gradients = whole * self.gradient_bytes - (-(trainable - whole) * self.gradient_bytes // gradient)
        whole = parameters - trainable + whole if by_layer else 0
        return States(
            weights=self._needed(whole * self.stored_bytes - (-(parameters - whole) * stored // weight)),
            gradients=self._needed(gradients),
            optimizer=self._needed(-(-trainable * self.optimizer_bytes // optimizer)),
            buffers=self._in_transit(first, end, replicas) + self._buckets(trainable, gradients, replicas),
        )

    def _in_transit(self, first: Any, end: Any, replicas: int) -> Any:
        """Return the bytes of the gradients of one layer on their way, and of weights gathered for the passes."""
        sharers = 1 if self.apart else replicas
        by_layer = self.rule.by_layer and self.zero_stage >= 2
        half = self.weight_bytes < GRADIENT_BYTES and self.rule.layer_gradients
        gathers = self.zero_stage >= 3 and (sharers > 1 or by_layer)
        sharded = self.zero_stage >= 2 and sharers > 1
        layers = int(half or sharded or by_layer) + (2 if gathers else 0)
        if not layers:
            return 0.0
        # Temporary copies: of gradients in single precision, and of weights.
        copied = by_layer * (GRADIENT_BYTES + gathers * self.weight_bytes)
        return (layers * self.weight_bytes + copied) * self._largest_layer(first, end)

    def _tensors(self, states: States, held: Held) -> dict[str, Any]:
        return {
            "weights": states.weights,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
            "activations": held.activations,
            "buffers": self._needed(held.passed + states.buffers),
        }

    def _needed(self, counted: Any) -> Any:
        return np.rint(self.factor * counted).astype(np.int64)

    def _kept_bytes(self, first: Any, end: Any) -> Any:
        return self.activation_prefix_bytes[end] - self.activation_prefix_bytes[first]

    def _buckets(self, parameters: Any, gradients: Any, replicas: int) -> Any:
        copies = self.rule.bucket_copies
        if copies is not None:
            bucket = np.minimum(parameters, self.rule.bucket_parameters) * self.weight_bytes
            return copies[self.zero_stage] * bucket
        return np.minimum(gradients, self.bucket_bytes) if replicas > 1 else np.zeros(parameters.shape)

    def _is_whole(self, first: Any, end: Any) -> Any:
        return (np.asarray(first) == 0) & (np.asarray(end) == self.layers)

    def _largest_layer(self, first: Any, end: Any) -> Any:
        """Parameters of the largest layer of a range: blocks are equal, embedding and head are at the ends."""
        each = np.diff(self.parameter_prefix)
        if self.rule.by_layer and self.zero_stage >= 2:
            # A tied weight is not gathered or scattered.
            each[[0, -1]] -= self.tied_trainable
        inside = np.where(self._has_block(first, end), each[1], 0)
        at_ends = np.where(np.asarray(first) == 0, each[0], 0), np.where(np.asarray(end) == self.layers, each[-1], 0)
        return np.maximum(inside, np.maximum(*at_ends))

    def _has_block(self, first: Any, end: Any) -> Any:
        return np.minimum(end, self.layers - 1) > np.maximum(first, 1)

    def _working(self, first: Any, end: Any) -> Any:
        """Bytes that exist again while one layer is recomputed: those of the largest layer of the range."""
        # All blocks are equal, so a range with any block needs one block's bytes.
        return np.where(self._has_block(first, end), self.working_bytes[1], 0.0)


def memory_tables(
    decoder: Decoder,
    engine: Engine,
    *,
    sequence_length: int,
    precision: Precision,
    optimizer: Optimizer,
    tp: int,
    microbatch_size: int,
    kinds: Sequence[Recompute],
    zero_stage: int,
    outer: bool = False,
    overheads: MemoryOverheads,
    attention: Attention,
    nvlink_gb_per_s: float | None,
    limit_bytes: int,
    measured: Mapping[LayerKind, float] | None = None,
    factor: float | None = None,
) -> dict[Recompute, MemoryTable]:
    """Count the memory of a decoder's stages under an engine, by choice of recomputation; `tp` divides what it shards.

    `measured`: measured bytes that a layer keeps of one microbatch on one device; they replace counted ones. `outer`:
    pipelines of islands also keep their last meeting point, and a momentum. `factor`: the bytes of the owner's runs
    relative to the counted ones, None without such runs.
    """
    rule = engine.memory
    costs = layer_costs(
        decoder,
        sequence_length,
        tp,
        attention=attention,
        sequence_parallel=engine.sequence_parallel,
        gate_copies=rule.gate_copies,
        module_bytes=ELEMENT_BYTES[precision] if rule.module_norms else 0,
    )
    weight = ELEMENT_BYTES[precision]
    half = weight < GRADIENT_BYTES
    stored = weight if rule.half_weights else GRADIENT_BYTES
    master = 4 if rule.half_weights and (zero_stage or (half and rule.master_weights)) else 0
    hidden = sequence_length * decoder.hidden_size
    none = np.zeros(decoder.layers)
    one = MemoryTable(
        zero_stage=zero_stage,
        parameter_prefix=np.concatenate([[0], np.cumsum(costs.parameters)]).astype(np.int64),
        activation_prefix_bytes=none,
        working_bytes=none,
        boundary_bytes=np.concatenate([[0.0], costs.output_elements[:-1] * (microbatch_size * weight), [0.0]]),
        gathered_bytes=rule.gathered_inputs * hidden * microbatch_size * weight if tp > 1 else 0.0,
        tied_parameters=costs.tied_parameters,
        trainable_prefix=np.concatenate([[0], np.cumsum(costs.trainable)]).astype(np.int64),
        tied_trainable=costs.tied_trainable,
        weight_bytes=weight,
        stored_bytes=stored,
        gradient_bytes=rule.gradient_bytes(precision),
        optimizer_bytes=master
        + _MOMENT_BYTES[optimizer]
        + (rule.step_bytes if half else 0)
        + (_OUTER_BYTES if outer else 0),
        rule=rule,
        bucket_bytes=engine.bucket_bytes,
        reserve=overheads.reserve,
        fragments=overheads.reserve * overheads.fragments,
        framework_bytes=overheads.framework_bytes(nvlink_gb_per_s),
        limit_bytes=limit_bytes,
        apart=outer,
        factor=1.0 if factor is None else factor,
        measured=factor is not None or LayerKind.BLOCK in (measured or {}),
    )
    tables = {}
    for kind in kinds:
        kept, working = _kept_and_working(
            costs,
            kind,
            engine,
            overheads,
            microbatch_size,
            weight,
            measured or {},
            # A user's module has its own loss.
            chunked=not decoder.counted,
        )
        tables[kind] = replace(one, activation_prefix_bytes=_prefix(kept), working_bytes=working)
    return tables


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _kept_and_working(
    costs: LayerCosts,
    recompute: Recompute,
    engine: Engine,
    overheads: MemoryOverheads,
    microbatch_size: int,
    weight_bytes: int,
    measured: Mapping[LayerKind, float],
    *,
    chunked: bool,
) -> tuple[Floats, Floats]:
    """Return each layer's bytes that stay until the backward pass, and those of one layer while it is recomputed.

    `chunked`: the loss may be computed in chunks.
    """
    width = float(microbatch_size * weight_bytes)
    plain = engine.attention is Attention.PLAIN
    probabilities = costs.score_elements * width if plain else np.zeros_like(costs.score_elements)
    loss = 4.0 * microbatch_size * costs.loss_elements
    # Embedding and head are never recomputed.
    cheap = costs.recomputed_elements * width + loss
    logits = microbatch_size * costs.loss_elements[-1]
    if chunked and logits > engine.memory.logit_elements:
        # The head's gradients are computed with the loss, chunk by chunk, and kept until the backward pass.
        cheap[-1] -= (logits - engine.memory.logit_elements) * (weight_bytes + 4.0)
        cheap[-1] += costs.trainable[-1] * weight_bytes + costs.output_elements[-2] * width
    whole = (costs.activation_elements * width - probabilities) * overheads.activations
    scores = probabilities * overheads.scores
    blocks = slice(1, -1)
    if LayerKind.BLOCK in measured:
        whole[blocks], scores = measured[LayerKind.BLOCK] - probabilities[blocks], probabilities
    cheap[0] = measured.get(LayerKind.EMBEDDING, cheap[0])
    cheap[-1] = measured.get(LayerKind.HEAD, cheap[-1])
    ends = cheap.copy()
    ends[blocks] = 0.0
    whole[0] = whole[-1] = 0.0
    match recompute:
        case Recompute.NONE:
            return whole + scores + ends, np.zeros_like(whole)
        case Recompute.SELECTIVE if engine.selective is Selective.SCORES:
            return whole + ends, scores
        case Recompute.SELECTIVE if engine.selective is Selective.HALF:
            return (whole + scores + cheap + ends) / 2.0, whole + scores
        case Recompute.SELECTIVE:
            kept = whole + scores + ends
            kept[recompute.blocks(len(kept))] = cheap[recompute.blocks(len(kept))]
            return kept, whole + scores
    return cheap, whole + scores
