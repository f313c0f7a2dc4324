"""The named engines, with what their sources say about their schedules."""

from __future__ import annotations

import math
from dataclasses import replace

from sailor_cloud.simulator.engine import SAILOR, Engine, MemoryRule, Selective, ShardMessages, StageSplit, Transfers
from sailor_cloud.workload import OwnRates

# Under ZeRO-2 and 3 pipelines synchronize after each pass of a layer, so they are planned as for uniform engines.
SAILOR_ALIKE = replace(SAILOR, uniform=True, pipelined_zero_stages=(2, 3))
# Bytes per logit of a cross-entropy of single steps in fp32: a cast, the maximum, the difference, exponentials, their
# sum, the quotient; then the gradient in place and its cast back. What products read and write is not in it. Source:
# megatron/core/tensor_parallel/cross_entropy.py (core 0.6, 2024). DeepSpeed keeps the common bytes, which are fitted on
# its runs, too.
_STEPWISE_LOSS_BYTES = 52.0
# Published runs of the other engines were fitted with all-reduces under ZeRO-1.
# DeepSpeed's pipeline engine sends one slice per tensor-parallel rank and waits for it. It reduces gradients in buckets
# of 5e8 bytes after the last backward pass, and refuses ZeRO-2 and 3. Source: deepspeed/runtime/pipe/engine.py and zero
# defaults, 0.14 (2024). Gradients stay in half precision until the step copies them to fp32; with bf16 they are also
# summed in fp32. Without ZeRO it flattens 5e8 gradients at a time. With ZeRO there is one bucket to reduce and one to
# gather, 4.5 times of each if ZeRO-3 overlaps. Source: deepspeed/runtime/{engine,bf16_optimizer}.py and the Hugging
# Face guide to DeepSpeed (2024). `all_reduce_slowdown`: logged seconds of reduction relative to the ring at the rates
# of a link test, mean of the three GH200 runs with one stage (1.9 to 2.8; Sailor's artifact); iterations of the mixed
# RTX cluster, BLOOM and FlagPerf agree. `collective_s` is fitted on runs of Megatron-DeepSpeed
# (compute_profiles/README.md). It posts one send or receive at a time, for which NCCL opens few channels (NVIDIA/nccl
# issue 1272, 2024). `pair_bytes_per_s` is fitted on GH200 runs; slower links, as in the RTX cluster, hide it. ZeRO-3
# gathers a module with what it prefetches, 5e7 parameters by default (stage3_prefetch_bucket_size): one of the four
# matrices of a block, or several small ones. Source: deepspeed/runtime/zero/config.py and
# partitioned_param_coordinator.py (2024).
DEEPSPEED = Engine(
    name="deepspeed",
    pipelined_zero_stages=(0, 1),
    uniform=True,
    one_tp=True,
    selective=Selective.SCORES,
    transfers=Transfers.BLOCKING,
    stages_outermost=True,
    scatter_sums=False,
    zone_by_zone=False,
    pair_bytes_per_s=3.8e9,
    overlap_sync=False,
    overlap_gather=False,
    bucket_bytes=5.0e8,
    all_reduce_slowdown=2.25,
    reduce_bytes=2,
    shard_messages=ShardMessages(parts=4, least_bytes=1.0e8, whole_gradients=False),
    collective_s=0.00098,
    zero_stages=(0, 1, 2, 3),
    memory=MemoryRule(
        module_norms=False,
        bf16_gradient_bytes=6,
        fp16_gradient_bytes=2,
        layer_gradients=False,
        step_bytes=4,
        bucket_copies=(1.0, 2.0, 2.0, 9.0),
        logit_elements=math.inf,
        by_layer=False,
    ),
)
# The kernels of Megatron-LM beside what the constants of published runs say. H100: a large product reached 0.81 of the
# peak under torch 2.11, not 0.605 (benchmarks/simulator_accuracy/fit_modules.py); FlashAttention-2 reaches 0.35 (see
# arXiv 2407.08608), not 0.173. A100: FlashAttention-2 reaches 0.55 (0.50 to 0.73 in its forward pass: arXiv
# 2307.08691), not 0.316; the factor of products is fitted by benchmarks/simulator_accuracy/fit_rates.py.
_MEGATRON_RATES = (
    OwnRates(compute_capability=8.0, product_factor=0.895, attention_factor=0.575),
    OwnRates(compute_capability=9.0, product_factor=0.747, attention_factor=0.494),
)
# Megatron-LM 1F1B: batched sends and receives that both ends wait for, slices where sequence parallelism is on,
# overlapped reduction of fp32 gradients, 40 million parameters a bucket, by rings or trees as NCCL chooses. Source:
# Megatron-LM core 0.6 (2024). Its interleaved schedule overlaps point-to-point communication by default
# (overlap_p2p_comm) and runs a multiple of the stages: megatron/core/pipeline_parallel/schedules.py at 00611e6e, whose
# option for other rounds, microbatch_group_size_per_vp_stage, is not planned. A sent output is freed
# (deallocate_output_tensor, same file; training sets deallocate_pipeline_outputs).
MEGATRON = Engine(
    name="megatron",
    zero_stages=(0, 1),
    pipelined_zero_stages=(0, 1),
    uniform=True,
    one_tp=True,
    selective=Selective.SCORES,
    transfers=Transfers.BLOCKING,
    interleaves=True,
    stages_outermost=True,
    scatter_sums=False,
    zone_by_zone=False,
    bucket_bytes=1.6e8,
    trees=True,
    sequence_parallel=True,
    fused=True,
    rates=_MEGATRON_RATES,
    logit_bytes=_STEPWISE_LOSS_BYTES,
    split=StageSplit.ENDS,
    memory=MemoryRule(gate_copies=3, module_norms=False, logit_elements=math.inf, by_layer=False, frees_outputs=True),
)
# PyTorch FSDP: one layer is one unit, gathered and scattered as a whole. Its purpose is full sharding: sharded
# weights are fp32, layers are cast as they are gathered. A non-reentrant checkpoint stops once it has what the backward
# pass reads. Source: PyTorch 2.x documentation (2024). torch's Schedule1F1B refuses fewer microbatches than stages
# (torch/distributed/pipelining/schedules.py, 2.13).
FSDP = Engine(
    name="fsdp",
    uniform=True,
    one_tp=True,
    selective=Selective.HALF,
    transfers=Transfers.BLOCKING,
    stages_outermost=True,
    scatter_sums=False,
    zone_by_zone=False,
    zero_stages=(0, 1, 2, 3),
    pipelined_zero_stages=(0, 1, 2, 3),
    default_zero_stage=3,
    bucket_bytes=5.0e8,
    overlap_gather=False,
    recompute_stops_early=True,
    sequence_parallel=True,
    shard_exposed=0.11,
    shard_messages=ShardMessages(parts=1),
    extra_stages=0,
    memory=MemoryRule(half_weights=False, module_norms=False, logit_elements=math.inf, by_layer=False),
)
# nanotron: eager kernels, blocks split into stages by FLOPs, without an option for another cut. It refuses fewer
# microbatches than stages - 1 (models/base.py and parallel/pipeline_parallel/engine.py at 01de8d94). Besides fp32 sums
# it has the buckets of PyTorch's DDP, and it gathers inputs on a separate stream. The number of live ones is fitted
# (benchmarks/results/published_memory.md). Source: nanotron main (2025). Times of launches and collectives are fitted
# on the playbook's runs (compute_profiles/README.md).
NANOTRON = Engine(
    name="nanotron",
    zero_stages=(0, 1),
    pipelined_zero_stages=(0, 1),
    uniform=True,
    one_tp=True,
    selective=Selective.SCORES,
    transfers=Transfers.BLOCKING,
    stages_outermost=True,
    scatter_sums=False,
    zone_by_zone=False,
    sequence_parallel=True,
    bucket_bytes=5.0e8,
    overlap_sharded_sync=False,
    overlap_gather=False,
    launch_factor=1.95,
    spread_launch_s=0.00247,
    exposed=0.782,
    idle_s=0.0624,
    split=StageSplit.WEIGHTED,
    one_cut=True,
    extra_stages=1,
    memory=MemoryRule(
        bf16_gradient_bytes=6,
        fp16_gradient_bytes=6,
        layer_gradients=False,
        module_norms=False,
        gathered_inputs=48.0,
        logit_elements=math.inf,
        by_layer=False,
    ),
)

ENGINES = {engine.name: engine for engine in (SAILOR, DEEPSPEED, MEGATRON, FSDP, NANOTRON)}
