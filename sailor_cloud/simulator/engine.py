"""The differences between training programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.model.plan import PipelineSchedule, Recompute, microbatches_per_round
from sailor_cloud.workload import Attention, OwnRates, Program, TorchModules

if TYPE_CHECKING:
    from sailor_cloud.simulator.scenario import Scenario
    from sailor_cloud.simulator.stage_table import StageTable


Floats = NDArray[np.float64]

_FLASH_CAPABILITY = 8.0


class Transfers(StrEnum):
    """Who waits while a tensor is transferred between stages: both ends, the receiver, or nobody (posted ahead)."""

    BLOCKING = "blocking"
    RECEIVER = "receiver"
    OVERLAPPED = "overlapped"


class StageSplit(StrEnum):
    """The number of blocks of each stage if only the number of stages is given.

    EVEN: as equal as possible, the first stages take the remainder. ENDS: embedding and head each count as a block, if
    that divides evenly. WEIGHTED: by FLOPs, including the head.
    """

    EVEN = "even"
    ENDS = "ends"
    WEIGHTED = "weighted"


class Selective(Enum):
    """What selective recomputation computes again.

    SCORES: the attention scores. HALF: in each block enough to keep half of its activations, in the time of SCORES.
    BLOCKS: every second block.
    """

    SCORES = auto()
    HALF = auto()
    BLOCKS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """The memory use of a program; bytes are per parameter.

    `fp32_gradient_bytes` to `fp16_gradient_bytes`: gradients and their sums, by the precision of the weights.
    `layer_gradients`: gradients in half precision exist for one layer at a time, until they are added to fp32 sums.
    `master_weights`: half precision has fp32 masters. `half_weights`: it also has its own weights; else layers are cast
    as they are gathered. `step_bytes`: the optimizer step's addition to its share in half precision. `bucket_copies`:
    by ZeRO stage, the number of allocated buckets of `bucket_parameters` gradients; None if it copies one of the
    engine's buckets. `gate_copies`: see layer_costs. `module_norms`: RMS norms are transformers' modules, not single
    kernels. `logit_elements`: the most logits on a device at once, if the loss is computed in chunks of tokens.
    `gathered_inputs`: the number of live gathered inputs of tensor-parallel layers if no other stage makes the host
    wait. `by_layer`: ZeRO-2 and 3 copy a layer's gradients to scatter them and its weights to gather them; only the
    optimizer keeps sharded weights; tied and frozen ones stay whole. `frees_outputs`: a range's output is freed as soon
    as it is sent, though its backward pass needs the tensor's history.
    """

    fp32_gradient_bytes: int = 4
    bf16_gradient_bytes: int = 4
    fp16_gradient_bytes: int = 4
    layer_gradients: bool = True
    master_weights: bool = True
    half_weights: bool = True
    step_bytes: int = 0
    bucket_copies: tuple[float, float, float, float] | None = None
    bucket_parameters: float = 5.0e8
    gate_copies: int = 4
    module_norms: bool = True
    gathered_inputs: float = 0.0
    logit_elements: float = 2.0**27
    by_layer: bool = True
    frees_outputs: bool = False

    def gradient_bytes(self, precision: Precision) -> int:
        match precision:
            case Precision.BF16:
                return self.bf16_gradient_bytes
            case Precision.FP16:
                return self.fp16_gradient_bytes
        return self.fp32_gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMessages:
    """The messages of ZeRO-3: a block's weights are gathered in `parts` of at least `least_bytes`.

    `whole_gradients`: a block's gradients are scattered in one message; else in buckets.
    """

    parts: int
    least_bytes: float = 0.0
    whole_gradients: bool = True

    def mean_bytes(self, weight_bytes: float, gradient_bytes: float, bucket_bytes: float) -> float:
        """Return the mean message of a block that gathers its weights twice and scatters its gradients."""
        gathered = max(weight_bytes / self.parts, self.least_bytes)
        scattered = gradient_bytes if self.whole_gradients else bucket_bytes
        messages = 2.0 * weight_bytes / gathered + gradient_bytes / scattered
        return (2.0 * weight_bytes + gradient_bytes) / messages


class StagePlace(NamedTuple):
    """The place of one replica of one stage."""

    accelerator: str
    zone: str
    tp: int

    def at(self, tp: int) -> StagePlace:
        return self._replace(tp=tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPipelines:
    """Pipelines with equal cuts and one microbatch size; `rows`: the places of each pipeline's stages.

    `microbatches`: the largest number in any of them.
    """

    rows: Sequence[tuple[StagePlace, ...]]
    cut: tuple[int, ...]
    microbatch_size: int
    microbatches: int


def uniform_pipelines(
    pipelines: Sequence[tuple[Sequence[StagePlace], tuple[int, ...], int, int]],
) -> UniformPipelines | str:
    """Return pipelines, each as places, cut, microbatch size and count, as uniform ones; else why they are not.

    Numbers of microbatches may differ by one, if they don't divide.
    """
    rows, cuts, sizes, counts = zip(*pipelines, strict=True)
    if len(set(sizes)) > 1:
        return f"its pipelines have microbatches of {', '.join(map(str, sorted(set(sizes))))}"
    if len(set(cuts)) > 1:
        return "its pipelines are cut differently"
    if max(counts) - min(counts) > 1:
        return f"its pipelines run {min(counts)} to {max(counts)} microbatches"
    return UniformPipelines(
        rows=tuple(tuple(row) for row in rows), cut=cuts[0], microbatch_size=sizes[0], microbatches=max(counts)
    )


class StageParts(NamedTuple):
    """Seconds of a stage: compute and transfer per microbatch; step and all-reduce per iteration."""

    compute_s: float
    transfer_s: float
    update_s: float
    sync_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationParts:
    """The seconds of an iteration, its stages, and bytes from zone to zone."""

    seconds: float
    stages: tuple[StageParts, ...]
    traffic: Mapping[tuple[str, str], float]


class Formulas(Protocol):
    """An engine's own cost model, which replaces replay, memory counts and links.

    `stage_table` has the stages' compute and memory; `problem` says why pipelines can't be judged. The others are the
    terms of a search. `cuts_s`: the seconds of an activation from one place to another, and of its gradient back, over
    a cut before each layer, shape [layers + 1] each. `ring_s`: an all-reduce of a device's bytes if all hops were like
    this one; `rings_s`: those of many sizes, infinite without a bandwidth. `all_reduces_s`: those of stages [first,
    end) with this many replicas and this smallest tp, over the slowest of some hops, shape [layers + 1, layers + 1].
    `updates_s`: the optimizer steps of stages by their first layer, shape [layers]. `shards`: the number of parallel
    all-reduces for a stage's gradients. `ends`: how many times the first stage's activation and the last one's gradient
    count.
    """

    def stage_table(
        self,
        scenario: Scenario,
        accelerator: str,
        *,
        tp: int,
        microbatch_size: int,
        recompute: Recompute,
        zero_stage: int,
    ) -> StageTable: ...

    def problem(self, pipelines: UniformPipelines, scenario: Scenario) -> str | None: ...

    def iteration(self, pipelines: UniformPipelines, scenario: Scenario) -> IterationParts: ...

    def cuts_s(self, scenario: Scenario, size: int, src: StagePlace, dst: StagePlace) -> tuple[Floats, Floats]: ...

    def all_reduces_s(
        self, scenario: Scenario, replicas: int, tp: int, hops: Sequence[tuple[StagePlace, StagePlace]]
    ) -> Floats: ...

    def ring_s(self, nbytes: float, replicas: int, src: StagePlace, dst: StagePlace) -> float: ...

    def rings_s(self, nbytes: Floats, replicas: int, src: StagePlace, dst: StagePlace) -> Floats: ...

    def updates_s(self, scenario: Scenario, size: int, place: StagePlace) -> Floats: ...

    def shards(self, tp: int) -> int: ...

    def ends(self, stages: int) -> tuple[float, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A training program; the defaults are sailor_runtime's.

    Transfers: it sends a tensor as soon as it is computed and has a receive per direction posted ahead. `message_s`:
    extra seconds of each tensor. `pair_bytes_per_s`: the most between nodes per pair of devices. `interleaves`: it also
    has an interleaved schedule, under which transfers overlap, in rounds of as many microbatches as stages.

    Gradients: buckets hold 16 MiB per rank, 64 MiB with parallel ranks of a stage and larger matrices. `overlap_sync`:
    gradients are reduced, bucket by bucket, during the last backward pass of a stage; `overlap_sharded_sync`: under
    ZeRO too. `all_reduce_slowdown`: the duration of an all-reduce step relative to a transfer of as many bytes in a
    link test. `trees`: an all-reduce may also use a tree. `scatter_sums`: with ZeRO-1 a rank receives only the sum of
    its share. `zone_by_zone`: a zone adds up its gradients before it sends them to another, and distributes what it
    receives; else one ring connects all zones. `gather_in_node`: ZeRO-1 shards the optimizer only over the ranks of a
    node. A reduction message has at most `bucket_bytes`; gradients have `reduce_bytes` per parameter in transit.

    Layers: `sequence_parallel`: tensor-parallel devices also share norms and dropout. `modules`: it runs layers as
    modules of torch. `fused`: one kernel does several element-wise operations. `launch_factor`: its time to launch a
    layer's kernels relative to the common one. `spread_launch_s`: extra launch seconds per block and tensor-parallel
    device if a pipeline is on several nodes. `exposed`: the share of tensor-parallel collectives that products don't
    hide; `collective_s`: the extra seconds of each. `rates`: of its own kernels, oldest accelerators first.
    `logit_bytes`: what its loss moves per logit; None: the common bytes. `idle_s`: seconds per iteration without
    kernels, for data, clipping and logs. `recompute`: what it can compute again; `recompute_stops_early`: all of a
    block except its last product.

    ZeRO: `default_zero_stage` applies if none is named, `pipelined_zero_stages` with more than one stage. From ZeRO-2
    on all pipelines have one shape. With ZeRO-3 weights are gathered and gradients scattered during a pass; the share
    `shard_exposed` of the shorter one remains visible. `shard_messages`: its messages; None: buckets, as in
    sums. `overlap_gather`: weights that ZeRO-1 updated are gathered during the next forward pass, first layers first.

    Pipelines: `stages_outermost`: if only degrees are given, ranks count through devices, then pipelines, then stages,
    so that the pipelines' equal stages are neighbours. `split`: the cut if only the number of stages is given, and the
    only one with `one_cut`. `extra_stages`: the most stages beyond the number of microbatches; None: any. `uniform`:
    all pipelines have equal cuts and one microbatch size; with `one_tp` all stages have one tp, and every pipeline runs
    equally many microbatches. `formulas`, if any, replace the replay.
    """

    name: str = "sailor"
    transfers: Transfers = Transfers.OVERLAPPED
    message_s: float = 0.0
    pair_bytes_per_s: float = math.inf
    interleaves: bool = False
    overlap_sync: bool = True
    overlap_sharded_sync: bool = True
    all_reduce_slowdown: float = 1.0
    trees: bool = False
    gather_in_node: bool = False
    bucket_bytes: float = 4.0 * 16 * 2**20
    scatter_sums: bool = True
    zone_by_zone: bool = True
    reduce_bytes: int = 4
    attention: Attention = Attention.FLASH
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    pipelined_zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    default_zero_stage: int = 0
    recompute: tuple[Recompute, ...] = tuple(Recompute)
    selective: Selective = Selective.BLOCKS
    recompute_stops_early: bool = False
    stages_outermost: bool = False
    sequence_parallel: bool = False
    modules: TorchModules | None = None
    fused: bool = False
    launch_factor: float = 1.0
    split: StageSplit = StageSplit.EVEN
    one_cut: bool = False
    extra_stages: int | None = None
    memory: MemoryRule = field(default_factory=MemoryRule)
    shard_exposed: float = 0.1
    shard_messages: ShardMessages | None = None
    overlap_gather: bool = True
    spread_launch_s: float = 0.0
    exposed: float = 1.0
    collective_s: float = 0.0
    rates: tuple[OwnRates, ...] = ()
    logit_bytes: float | None = None
    idle_s: float = 0.0
    uniform: bool = False
    one_tp: bool = False
    formulas: Formulas | None = field(default=None, compare=False)

    @property
    def schedules(self) -> tuple[PipelineSchedule, ...]:
        """The pipeline schedules that can be replayed for it."""
        if self.transfers is Transfers.OVERLAPPED and self.formulas is None:
            return tuple(PipelineSchedule)
        usual = (PipelineSchedule.ONE_F_ONE_B,)
        return (*usual, PipelineSchedule.INTERLEAVED) if self.interleaves else usual

    def transfers_in(self, schedule: PipelineSchedule) -> Transfers:
        """Return who waits for a transfer between stages."""
        return Transfers.OVERLAPPED if schedule is PipelineSchedule.INTERLEAVED else self.transfers

    def runs_in_rounds(self, microbatches: int, stages: int) -> bool:
        """Return whether an interleaved schedule can run this number of microbatches."""
        rounds = microbatches_per_round(microbatches, stages)
        return rounds == stages if self.interleaves else rounds is not None

    def overlaps_sync(self, zero_stage: int) -> bool:
        """Return whether gradients are reduced during the last backward pass."""
        return self.overlap_sync and (self.overlap_sharded_sync or not zero_stage)

    def attention_on(self, accelerator: Accelerator, precision: Precision) -> Attention:
        """Return the attention that runs on an accelerator; torch's modules take what torch has for it.

        Torch's flash and cuDNN kernels need 16 bits and compute capability 8.0 (sdp_utils.cpp of torch 2.13). Its rate
        elsewhere is counted as that of flash attention; error not measured.
        """
        capability = accelerator.compute_capability
        if self.modules is None or self.attention is not Attention.FLASH or capability is None:
            return self.attention
        half = precision in (Precision.BF16, Precision.FP16)
        return Attention.FLASH if half and capability >= _FLASH_CAPABILITY else Attention.MEMORY_EFFICIENT

    def program(self, *, tp: int, spread: bool) -> Program:
        """Return how it runs a layer on `tp` devices; `spread`: the pipeline is on several nodes."""
        return Program(
            name=self.name,
            attention=self.attention,
            modules=self.modules,
            fused=self.fused,
            sequence_parallel=self.sequence_parallel,
            launch_factor=self.launch_factor,
            more_launch_s=self.spread_launch_s * tp if spread and tp > 1 else 0.0,
            exposed=self.exposed,
            collective_s=self.collective_s,
            rates=self.rates,
            logit_bytes=self.logit_bytes,
        )


# Fitted on an H100 under torch 2.11 by benchmarks/simulator_accuracy/fit_modules.py, 2026-11-27: results/gpu.md.
TORCH_MODULES = TorchModules(
    launch_factor=1.79,
    layer_norm_passes=3.11,
    rms_norm_passes=17.6,
    logit_bytes=143.0,
    update_bytes=59.8,
    sum_bytes=12.0,
    product_factor=0.639,
    attention_factor=0.319,
)
SAILOR = Engine(modules=TORCH_MODULES)
