"""The layers of each stage if only the number of stages is given."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.simulator.engine import StageSplit
from sailor_cloud.workload import layer_costs


def stage_bounds(split: StageSplit, decoder: Decoder, stages: int) -> tuple[int, ...]:
    """Return the stages' begins and the last one's end: `stages + 1` layers, starting with 0.

    The embedding goes to the first stage and the head to the last. `stages` must not exceed the number of blocks.
    """
    blocks = decoder.blocks
    if split is StageSplit.WEIGHTED:
        counts = _weighted(decoder, stages)
    elif split is StageSplit.ENDS and blocks % stages and (blocks + 2) % stages == 0:
        counts = [(blocks + 2) // stages] * stages
        counts[0] -= 1
        counts[-1] -= 1
    else:
        each, rest = divmod(blocks, stages)
        counts = [each + (stage < rest) for stage in range(stages)]
    ends = list(accumulate(counts))
    return (0, *(1 + end for end in ends[:-1]), decoder.layers)


def _weighted(decoder: Decoder, stages: int) -> list[int]:
    """Return the blocks of each stage: a stage is full once all stages up to it have their share of the FLOPs.

    Every stage except the last, which has the head, keeps at least one block. Source: nanotron main (2025).
    """
    flops = layer_costs(decoder, 1, 1).matmul_flops[1:]
    so_far, counts, stage = np.cumsum(flops), [0] * stages, 0
    for block in range(decoder.blocks):
        counts[stage] += 1
        full = so_far[block] >= so_far[-1] * (stage + 1) / stages * (1 - 1e-9)
        left = decoder.blocks - block - 1
        # If only as many blocks are left as stages before the last, each gets one.
        if left and stage < stages - 1 and (full or left == stages - stage - 2):
            stage += 1
    return counts
