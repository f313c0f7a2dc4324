"""How a training program behaves where programs differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sailor_cloud.model.plan import Recompute
from sailor_cloud.workload import Attention


class Transfers(StrEnum):
    """Who waits while a tensor travels between stages: both ends, the receiver, or nobody (posted ahead)."""

    BLOCKING = "blocking"
    RECEIVER = "receiver"
    OVERLAPPED = "overlapped"


class StageSplit(StrEnum):
    """How many blocks each stage gets where only the number of stages is given.

    EVEN: as equal as possible, the first stages take the rest. ENDS: embedding and head each take a block's place,
    where that divides evenly. WEIGHTED: by FLOPs, the head among them.
    """

    EVEN = "even"
    ENDS = "ends"
    WEIGHTED = "weighted"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRule:
    """What a program keeps per parameter: bytes of the gradient, and whether half precision has fp32 masters."""

    gradient_bytes: int = 4
    master_weights: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A training program; the defaults are sailor_runtime's.

    It sends a tensor as soon as it is computed and has a receive per direction posted ahead. Its buckets hold 16 MiB
    per rank; ranks of a stage side by side and layers with larger matrices make that 64 MiB. `split_transfers`:
    tensor-parallel senders send one slice each instead of every receiver taking the whole tensor. `overlap_sync`:
    gradients are reduced, bucket by bucket, while the last backward pass of a stage runs. A reduction message has at
    most `bucket_bytes`; gradients travel in `reduce_bytes` per parameter. `sequence_parallel`: tensor-parallel devices
    also share out norms and dropout. `fused`: one kernel does a run of element-wise operations. `launch_factor`: how
    many times the common time to launch a layer's kernels it needs. `default_zero_stage` holds where none is named,
    `pipelined_zero_stages` with more than one stage. `recompute`: what it can compute again. `stages_outermost`: where
    only degrees are given, ranks count through devices, then pipelines, then stages, so that the pipelines' equal
    stages are neighbours.
    """

    name: str = "sailor"
    transfers: Transfers = Transfers.OVERLAPPED
    split_transfers: bool = False
    overlap_sync: bool = True
    bucket_bytes: float = 4.0 * 16 * 2**20
    reduce_bytes: int = 4
    attention: Attention = Attention.FLASH
    zero_stages: tuple[int, ...] = (0, 1)
    pipelined_zero_stages: tuple[int, ...] = (0, 1)
    default_zero_stage: int = 0
    recompute: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    stages_outermost: bool = False
    sequence_parallel: bool = False
    fused: bool = False
    launch_factor: float = 1.0
    split: StageSplit = StageSplit.EVEN
    memory: MemoryRule = field(default_factory=MemoryRule)
