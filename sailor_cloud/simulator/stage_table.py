"""Tables of the cost of stages, as prefix sums over layers, so that a search gets any layer range in one step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import ProfileRef
from sailor_cloud.model.job import SumFormat
from sailor_cloud.model.offer import Accelerator
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator.engine import Selective
from sailor_cloud.simulator.memory import MemoryTable, StageMemoryTable, memory_tables
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.simulator.sharding import Sharding, sharding
from sailor_cloud.workload import LayerCosts, layer_costs, tp_problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """Stages of one accelerator at one tp, microbatch size and choice of recomputation.

    Prefix arrays have shape [layers + 1]. Seconds are of one microbatch (forward, backward with recomputation) or of
    one optimizer step (update, before ZeRO). `weights_prefix_s` is the part of backward passes that a zero-bubble
    schedule can defer. `gradient_prefix_bytes`, which pipelines sum, covers all tensor-parallel shards together. With
    ZeRO it covers everything that `sharding` scatters and gathers, as if it were summed. If pipelines meet every
    `sync_every` steps it is the share of one step, which a search and its bounds use for all of them; `sync_groups`
    adds the sums inside zones at every step. `tied_sharding` is that of the weight that embedding and head share.
    `error`, `measured`, `measured_size` and `exchange_share` are those of the layer times. `message_s` and `sums_s`: a
    local rank's own time per tensor that it sends or receives, and for the sums.
    """

    accelerator: Accelerator
    tp: int
    microbatch_size: int
    recompute: Recompute
    zero_stage: int
    forward_prefix_s: Floats
    backward_prefix_s: Floats
    weights_prefix_s: Floats
    update_prefix_s: Floats
    gradient_prefix_bytes: Floats
    memory: StageMemoryTable
    message_s: float
    sums_s: float
    sharding: Sharding
    tied_sharding: Sharding
    sync_every: int = 1
    limit_bytes: int
    error: float
    measured: bool
    measured_size: int | None
    exchange_share: float
    profile: ProfileRef

    @property
    def layers(self) -> int:
        return len(self.forward_prefix_s) - 1

    def forward_s(self, first: Any, end: Any) -> Any:
        return self.forward_prefix_s[end] - self.forward_prefix_s[first]

    def backward_s(self, first: Any, end: Any) -> Any:
        return self.backward_prefix_s[end] - self.backward_prefix_s[first]

    def weights_s(self, first: Any, end: Any) -> Any:
        """Return the seconds of the gradients of weights in one microbatch's backward pass through [first, end)."""
        return self.weights_prefix_s[end] - self.weights_prefix_s[first]

    def compute_s(self, first: Any, end: Any) -> Any:
        """Return the seconds of forward plus backward of one microbatch through layers [first, end)."""
        return self.forward_s(first, end) + self.backward_s(first, end)

    def handing_s(self, first: Any, end: Any) -> Any:
        """Return a stage's own seconds to pass on the tensors of one microbatch in one direction."""
        neighbours = 1 * (first > 0) + (end < self.layers)
        return self.message_s * neighbours

    def stage_s(self, first: Any, end: Any) -> Any:
        """Return the seconds that a stage of layers [first, end) is busy with one microbatch, forward and backward."""
        return self.compute_s(first, end) + 2.0 * self.handing_s(first, end)

    def update_s(self, first: Any, end: Any, *, shards: int = 1) -> Any:
        """Return the seconds of the optimizer step, and of a rank's own time for sums with other replicas.

        With ZeRO each of `shards` replicas updates its share, unless they are islands.
        """
        sharers = shards if self.zero_stage and self.sync_every == 1 else 1
        step = (self.update_prefix_s[end] - self.update_prefix_s[first]) / sharers
        return step + self.sums_s * (shards > 1)

    def parameters(self, first: Any, end: Any) -> Any:
        """Return the parameters that a device keeps for layers [first, end)."""
        return self.memory.parameters(first, end)

    @property
    def tied_parameters(self) -> int:
        """Trainable parameters that embedding and head share."""
        return self.memory.tied_trainable

    @property
    def boundary_bytes(self) -> Floats:
        return self.memory.boundary_bytes

    def gradient_bytes(self, first: Any, end: Any) -> Any:
        """Return the bytes that pipelines sum for layers [first, end), of all tensor-parallel shards together."""
        return self.gradient_prefix_bytes[end] - self.gradient_prefix_bytes[first]

    @property
    def gradient_bytes_per_parameter(self) -> float:
        return self.sharding.total / 2.0 / self.sync_every

    def memory_bytes(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any:
        """Return the bytes that one device must have; see MemoryTable.needed_bytes."""
        return self.memory.needed_bytes(first, end, in_flight=in_flight, replicas=replicas)


def stage_table(
    scenario: Scenario,
    accelerator: str,
    *,
    tp: int,
    microbatch_size: int,
    recompute: Recompute = Recompute.NONE,
    zero_stage: int = 0,
    spread: bool = False,
) -> StageTable:
    """Return the table of one kind of stage; `spread`: of pipelines on several nodes.

    Raises RequestError if tp doesn't divide the layers or the accelerator lacks the precision, and ProfileMissingError
    if its speed is unknown.
    """
    return stage_tables(
        scenario,
        accelerator,
        tp=tp,
        microbatch_size=microbatch_size,
        kinds=(recompute,),
        zero_stage=zero_stage,
        spread=spread,
    )[recompute]


def stage_tables(
    scenario: Scenario,
    accelerator: str,
    *,
    tp: int,
    microbatch_size: int,
    kinds: Sequence[Recompute],
    zero_stage: int = 0,
    spread: bool = False,
) -> dict[Recompute, StageTable]:
    """Return the tables of stages that differ only in recomputation; see stage_table."""
    decoder, training = scenario.decoder, scenario.job.training
    problem = tp_problem(decoder, tp)
    if problem is not None:
        raise RequestError(problem)
    if (formulas := scenario.engine.formulas) is not None:
        return {
            kind: formulas.stage_table(
                scenario, accelerator, tp=tp, microbatch_size=microbatch_size, recompute=kind, zero_stage=zero_stage
            )
            for kind in kinds
        }
    part = scenario.catalog.accelerator(accelerator)
    times = scenario.profiles.layer_times(
        part,
        decoder,
        sequence_length=training.sequence_length,
        microbatch_size=microbatch_size,
        tp=tp,
        precision=training.precision,
        program=scenario.engine.program(tp=tp, spread=spread),
        ring_bytes_per_s=scenario.ring_bytes_per_s(accelerator, tp),
    )
    costs = layer_costs(decoder, training.sequence_length, tp, attention=scenario.engine.attention)
    memory = _memory(scenario, part, tp=tp, microbatch_size=microbatch_size, kinds=kinds, zero_stage=zero_stage)
    first = memory[kinds[0]]
    backward_s = times.backward_s if times.measured else times.backward_s * _trained_share(costs)
    moved, tied = _exchanges(scenario, first.weight_bytes, zero_stage)
    every = (training.sync_every or 1) if scenario.engine.zone_by_zone else 1
    forward, update = _prefix(times.forward_s), _prefix(times.update_s)
    gradients = _prefix(np.diff(first.trainable_prefix) * (tp * moved.total / 2.0 / every))
    return {
        kind: StageTable(
            accelerator=part,
            tp=tp,
            microbatch_size=microbatch_size,
            recompute=kind,
            zero_stage=zero_stage,
            forward_prefix_s=forward,
            backward_prefix_s=_prefix(backward_s + _recomputed_s(scenario, times.forward_s, costs, kind, tp)),
            weights_prefix_s=_prefix(_deferrable_s(backward_s, costs, kind)),
            update_prefix_s=update,
            gradient_prefix_bytes=gradients,
            memory=memory[kind],
            message_s=scenario.profiles.local_core_s(part, scenario.profiles.local.message_core_s),
            sums_s=scenario.profiles.local_core_s(part, scenario.profiles.local.sums_core_s),
            sharding=moved,
            tied_sharding=tied,
            sync_every=every,
            limit_bytes=first.limit_bytes,
            error=times.error,
            measured=times.measured,
            measured_size=times.measured_size,
            exchange_share=times.exchange_share,
            profile=times.profile,
        )
        for kind in kinds
    }


def _memory(
    scenario: Scenario,
    part: Accelerator,
    *,
    tp: int,
    microbatch_size: int,
    kinds: Sequence[Recompute],
    zero_stage: int,
) -> dict[Recompute, MemoryTable]:
    """Count the memory of stages by the software stack of their accelerator, and by the owner's own runs."""
    decoder, training, profiles = scenario.decoder, scenario.job.training, scenario.profiles
    stack, owned = profiles.stack(part.name), profiles.own.memory(part.name, training.precision.value, decoder.name)
    return memory_tables(
        decoder,
        scenario.engine,
        sequence_length=training.sequence_length,
        precision=training.precision,
        optimizer=training.optimizer,
        tp=tp,
        microbatch_size=microbatch_size,
        kinds=kinds,
        zero_stage=zero_stage,
        overheads=stack.overheads,
        outer=training.sync_every is not None and scenario.engine.zone_by_zone,
        attention=scenario.engine.attention_on(part, training.precision),
        nvlink_gb_per_s=part.nvlink_gb_per_s,
        limit_bytes=part.usable_bytes,
        measured=profiles.activation_bytes(
            part.name,
            decoder,
            sequence_length=training.sequence_length,
            microbatch_size=microbatch_size,
            tp=tp,
            precision=training.precision,
        ),
        factor=math.exp(profiles.errors.memory * owned.mean) if owned.is_informative else None,
    )


def _exchanges(scenario: Scenario, weight_bytes: int, zero_stage: int) -> tuple[Sharding, Sharding]:
    """Return the exchanges of a ZeRO stage for layers, and for a tied weight."""
    engine = scenario.engine
    # Gradients are never exchanged with fewer bytes than weights have.
    reduced = max(engine.reduce_bytes, weight_bytes)
    if scenario.job.training.sums is SumFormat.BF16 and engine.zone_by_zone:
        reduced = 2
    layers, tied = (
        sharding(stage, weight_bytes=weight_bytes, gradient_bytes=reduced, scatter_sums=engine.scatter_sums)
        for stage in (zero_stage, min(zero_stage, 1) if engine.memory.by_layer else zero_stage)
    )
    return layers, tied


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _trained_share(costs: LayerCosts) -> Floats:
    """Return the share of each layer's backward pass that remains without the gradients of frozen weights.

    Half of a product's backward pass is its weight's gradient. By FLOPs, so norms and activations count in proportion.
    """
    frozen = 1.0 - costs.trainable / np.maximum(costs.parameters, 1)
    return 1.0 - frozen * costs.matmul_flops / np.maximum(costs.backward_flops, 1.0)


def _deferrable_s(backward_s: Floats, costs: LayerCosts, recompute: Recompute) -> Floats:
    """Return the seconds of each layer's backward pass for gradients of weights, which can be deferred.

    By FLOPs, they are half of those of products with trained weights; recomputed blocks defer nothing. Left out is the
    cost of halving itself: 2 % of the backward pass of three blocks of 512, and 9 % if each pass allocates its memory
    from the system again (2026-11, one core).
    """
    trained = costs.trainable / np.maximum(costs.parameters, 1)
    left = costs.backward_flops - (1.0 - trained) * costs.matmul_flops
    found = backward_s * trained * costs.matmul_flops / np.maximum(left, 1.0)
    blocks = recompute.blocks(len(found))
    found[blocks] = 0.0
    return np.asarray(found)


def _recomputed_s(scenario: Scenario, forward_s: Floats, costs: LayerCosts, recompute: Recompute, tp: int) -> Floats:
    """Return the seconds of recomputation: blocks repeat their forward pass or its attention, other layers nothing.

    Attention takes its share of the FLOPs, which is too little if scores are kept and moved; error not measured.
    """
    again: Floats = np.zeros_like(forward_s)
    if recompute is Recompute.SELECTIVE and scenario.engine.selective is not Selective.BLOCKS:
        share = 1.0 - costs.matmul_flops / np.maximum(costs.forward_flops, 1.0)
        again[1:-1] = (forward_s * share)[1:-1]
        return again
    blocks = recompute.blocks(len(again))
    again[blocks] = forward_s[blocks]
    if scenario.engine.recompute_stops_early and recompute is Recompute.FULL:
        # The backward pass does not use the result of a block's last product.
        decoder, length = scenario.decoder, scenario.job.training.sequence_length
        last = 2.0 * length * decoder.ffn_size * decoder.hidden_size / tp
        again[1:-1] *= 1.0 - last / costs.forward_flops[1:-1]
    return again
