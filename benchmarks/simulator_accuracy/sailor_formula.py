"""The formula of Sailor's own simulator, as its paper and artifact state it, to compare with on the same rows.

M = ceil(batch / (microbatch size * replicas)). T = (M - 1) * max over stages (C + P) + sum C + sum P + longest update,
C the slowest replica's forward and backward, P activation and gradient on the curve of the tensor-parallel pairs.
Gradients go in buckets of 5e8 bytes over a ring of one pair, a stage's bytes being those of one device at tp 1 divided
by min(tp, 4). Memory = 24 bytes per parameter + activations * (stages - stage) + 5.06e9.

The engine `sailor-artifact` (`sailor_cloud/simulator/engines/sailor_artifact.py`) follows the artifact's program, which
counts some transfers twice and leaves out the hop that closes a ring. This file stays because it is the formula without
these peculiarities: a cut costs twice its activation, and every hop of a ring counts. It reads the artifact's own
files, so no change of the import or of the engine changes this baseline.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from reference import ZONE, Measured

from sailor_cloud.interchange.sailor_names import their_accelerator

_BUCKET_BYTES = 5.0e8
_FRAMEWORK_BYTES = 5.06e9
_BYTES_PER_PARAMETER = 24
_FP32_BYTES = 4


class SailorFormula:
    """Predicts seconds and peak bytes of a measured configuration from the artifact's files."""

    def __init__(self, artifact: Path) -> None:
        self._times = json.loads((artifact / "simulator_profiles.json").read_text())
        self._sizes = json.loads((artifact / "llm_info.json").read_text())
        self._curves = json.loads((artifact / "multizone_bandwidths_het.json").read_text())[ZONE]

    def iteration_s(self, row: Measured) -> float:
        compute, transfer, sync, update = [], [], [], 0.0
        for stage in range(len(row.layers)):
            layers = self._layers(row, stage)
            tables = [self._table(row, gpu) for gpu in row.gpus[stage]]
            compute.append(max(sum(table[i][0] + table[i][1] for i in layers) for table in tables))
            update = max(update, *(table[layers[0]][2] for table in tables))
            transfer.append(self._boundary_s(row, stage))
            sync.append(self._ring_s(row, stage))
        slowest = max(c + p for c, p in zip(compute, transfer, strict=True))
        return (row.microbatches - 1) * slowest + sum(compute) + sum(transfer) + update + max(sync)

    def peak_bytes(self, row: Measured) -> float:
        peaks = []
        stages = len(row.layers)
        for stage in range(stages):
            sizes = [self._sizes[row.model][str(row.tp)][i] for i in self._layers(row, stage)]
            parameters = sum(size["params_floats"] for size in sizes)
            kept = sum(size["act_mem_floats"] for size in sizes) * _FP32_BYTES * row.microbatch_size
            peaks.append(parameters * _BYTES_PER_PARAMETER + kept * (stages - stage) + _FRAMEWORK_BYTES)
        return float(max(peaks))

    def _table(self, row: Measured, gpu: str) -> dict[str, list[float]]:
        by_batch = self._times[row.model][their_accelerator(gpu)]
        table: dict[str, list[float]] = by_batch[str(row.microbatch_size)][str(row.tp)]
        return table

    def _layers(self, row: Measured, stage: int) -> list[str]:
        first = sum(row.layers[:stage])
        return [str(i) for i in range(first, first + row.layers[stage])]

    def _boundary_s(self, row: Measured, stage: int) -> float:
        if stage == len(row.layers) - 1:
            return 0.0
        size = self._sizes[row.model]["1"][self._layers(row, stage)[-1]]["act_output_floats"]
        nbytes = size * _FP32_BYTES * row.microbatch_size
        pairs = zip(row.gpus[stage], row.gpus[stage + 1], strict=True)
        return max(2.0 * self._transfer_s(nbytes, src, dst, min(row.tp, 4)) for src, dst in pairs)

    def _ring_s(self, row: Measured, stage: int) -> float:
        count = row.replicas
        if count == 1:
            return 0.0
        sizes = [self._sizes[row.model]["1"][i] for i in self._layers(row, stage)]
        left = sum(size["params_bytes"] for size in sizes) / min(row.tp, 4)
        hops = {(row.gpus[stage][i], row.gpus[stage][(i + 1) % count]) for i in range(count)}
        seconds = 0.0
        while left > 0:
            bucket = min(left, _BUCKET_BYTES)
            seconds += max(2 * (count - 1) * self._transfer_s(bucket / count, src, dst, 1) for src, dst in hops)
            left -= bucket
        return seconds

    def _transfer_s(self, nbytes: float, src: str, dst: str, pairs: int) -> float:
        entry: Any = self._curves[their_accelerator(src)][str(pairs)][ZONE][their_accelerator(dst)][str(pairs)]
        (a, b, c), _ = entry
        x = math.log2(nbytes / 1e6)
        return nbytes / 1e9 / (a * x * x + b * x + c)
