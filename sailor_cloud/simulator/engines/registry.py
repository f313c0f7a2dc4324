"""The engines that can be named, with what their sources say about their schedules."""

from __future__ import annotations

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator.engines.engine import Engine, StageSplit, Transfers

SAILOR = Engine()
# DeepSpeed's pipeline engine sends one slice per tensor-parallel rank and waits for it; it reduces gradients in buckets
# of 5e8 bytes after the last backward pass, and refuses ZeRO-2 and 3. Source: deepspeed/runtime/pipe/engine.py and zero
# defaults, 0.14 (2024).
DEEPSPEED = Engine(
    name="deepspeed",
    recompute=tuple(Recompute),
    transfers=Transfers.BLOCKING,
    split_transfers=True,
    stages_outermost=True,
    overlap_sync=False,
    bucket_bytes=5.0e8,
    zero_stages=(0, 1, 2, 3),
)
# Megatron-LM 1F1B: batched sends and receives that both ends wait for, slices where sequence parallelism is on,
# overlapped reduction of fp32 gradients, 40 million parameters a bucket. Source: Megatron-LM core 0.6 (2024).
MEGATRON = Engine(
    name="megatron",
    recompute=tuple(Recompute),
    transfers=Transfers.BLOCKING,
    split_transfers=True,
    stages_outermost=True,
    bucket_bytes=1.6e8,
    sequence_parallel=True,
    fused=True,
    split=StageSplit.ENDS,
)
# PyTorch FSDP: one layer is one unit; full shard is what it is for. Source: PyTorch 2.x documentation (2024).
FSDP = Engine(
    name="fsdp",
    recompute=tuple(Recompute),
    transfers=Transfers.BLOCKING,
    split_transfers=True,
    stages_outermost=True,
    zero_stages=(0, 1, 2, 3),
    pipelined_zero_stages=(0, 1, 2, 3),
    default_zero_stage=3,
    sequence_parallel=True,
)
# nanotron: eager kernels, blocks given to stages by FLOPs. Source: nanotron main (2025).
NANOTRON = Engine(
    name="nanotron",
    recompute=tuple(Recompute),
    transfers=Transfers.BLOCKING,
    split_transfers=True,
    stages_outermost=True,
    sequence_parallel=True,
    split=StageSplit.WEIGHTED,
)

ENGINES = {engine.name: engine for engine in (SAILOR, DEEPSPEED, MEGATRON, FSDP, NANOTRON)}


def engine_named(name: str) -> Engine:
    """Return an engine by name. Raises RequestError for one that is not known."""
    engine = ENGINES.get(name)
    if engine is None:
        message = f"{name!r} is not known; known: {', '.join(ENGINES)}"
        raise RequestError([Problem(path="engine", message=message)])
    return engine
