"""The formulas by which Sailor's artifact (SOSP'25, commit cf2c8e3) scores a plan, from its own data files.

M = ceil(batch / (microbatch size * replicas)). A stage takes C, forward and backward of its slowest replica, and P, the
activation that it sends on and the gradient that it sends back, each of as many bytes as the activation that the first
or last of its layers puts out, on the curve for min(tp, devices per node) pairs at each end. The last stage's gradient
counts twice, and so does the first stage's activation in a pipeline of more than three stages. T = (M - 1) * max(C + P)
+ sum(C + P) + longest update + longest gradient sum. Sums go in buckets of 5e8 bytes over a ring of one pair, a stage's
bytes being those of one device at tp 1 divided by min(tp, 4); the slowest hop from one replica to the next counts, the
one that closes the ring in money only. Memory = 24 bytes per parameter + activations * (stages - stage) + 5.06e9 bytes.
Money: devices * USD per hour * T, activations, gradients and ring hops between zones. None of this is the product's
simulator.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

USD_PER_HOUR = {"A100-40": 3.673385, "V100-16": 2.859998, "GH-96": 11.06}
BYTES_PER_PARAMETER = 24.0
FRAMEWORK_BYTES = 5.06e9
_FLOAT_BYTES = 4.0
_BUCKET_BYTES = 5.0e8
_DEVICES_PER_NODE = 4
# Below this many GB/s a curve says nothing; its artifact takes such a transfer as out of the question.
_SLOWEST_GB_PER_S = 0.02
_NEVER_S = 1e3


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where one replica of one stage stands."""

    gpu: str
    zone: str
    tp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the artifact says of a plan; `problems` are reasons why it can't run."""

    iteration_s: float
    usd: float
    egress_usd: float
    devices: dict[tuple[str, str], int]
    problems: tuple[str, ...]


@dataclass(slots=True)
class Artifact:
    """The data files of one model, with a cache of transfer times."""

    folder: Path
    model: str
    batch: int
    times: dict[str, Any] = field(init=False)
    sizes: dict[str, Any] = field(init=False)
    _curves: dict[str, Any] = field(init=False)
    _egress: dict[str, dict[str, float]] = field(init=False)
    _memory: dict[str, float] = field(init=False)
    _layers: dict[tuple[int, str], Floats] = field(default_factory=dict)
    _times: dict[tuple[str, int, int], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.times = _read(self.folder / "simulator_profiles.json")[self.model]
        self.sizes = _read(self.folder / "llm_info.json")[self.model]
        self._curves = _read(self.folder / "multizone_bandwidths_het.json")
        self._egress = _read(self.folder / "communication_cost.json")
        nodes = _read(self.folder / "configs" / "basic_cluster_config.json")
        self._memory = {gpu: shape["mem_per_gpu"] for gpu, shape in nodes.items() if isinstance(shape, dict)}

    @property
    def layers(self) -> int:
        return len(self.sizes["1"])

    def memory_bytes(self, gpu: str) -> float:
        return self._memory[gpu]

    def egress_usd_per_byte(self, src: str, dst: str) -> float:
        return self._egress[src][dst] / 1e9

    def known(self, gpu: str, size: int, tp: int) -> bool:
        return str(tp) in self.times.get(gpu, {}).get(str(size), {}) and str(tp) in self.sizes

    def layer_times(self, gpu: str, size: int, tp: int) -> Floats:
        """Return forward, backward and update seconds, shape [layers, 3]."""
        if (gpu, size, tp) not in self._times:
            table = self.times[gpu][str(size)][str(tp)]
            self._times[gpu, size, tp] = np.array([table[str(layer)] for layer in range(self.layers)])
        return self._times[gpu, size, tp]

    def layer_sizes(self, tp: int, what: str) -> Floats:
        if (tp, what) not in self._layers:
            each = [self.sizes[str(tp)][str(layer)][what] for layer in range(self.layers)]
            self._layers[tp, what] = np.array(each, dtype=np.float64)
        return self._layers[tp, what]

    def sent_bytes(self, layer: int, size: int) -> float:
        """Return the bytes that go over a cut at a layer: what the layer puts out."""
        return float(self.sizes["1"][str(layer)]["act_output_floats"]) * _FLOAT_BYTES * size

    def transfer_s(self, nbytes: Any, src: Place, dst: Place) -> Any:
        """Return the seconds of one transfer; nbytes may be an array of positive numbers."""
        pairs = (min(src.tp, _DEVICES_PER_NODE), min(dst.tp, _DEVICES_PER_NODE))
        (a, b, c), _ = self._curves[src.zone][src.gpu][str(pairs[0])][dst.zone][dst.gpu][str(pairs[1])]
        x = np.log2(np.asarray(nbytes) / 1e6)
        rate = a * x * x + b * x + c
        return np.where(rate < _SLOWEST_GB_PER_S, _NEVER_S, np.asarray(nbytes) / 1e9 / np.maximum(rate, 1e-9))

    def ring_s(self, nbytes: Any, replicas: int, src: Place, dst: Place) -> Any:
        """Return the seconds of a gradient sum if all hops were like the one from src to dst."""
        size = np.asarray(nbytes, dtype=np.float64)
        if replicas < 2:
            return np.zeros_like(size)
        ends = Place(src.gpu, src.zone, 1), Place(dst.gpu, dst.zone, 1)
        whole = np.floor(size / _BUCKET_BYTES)
        rest = size - whole * _BUCKET_BYTES
        steps = 2.0 * (replicas - 1)
        full = self.transfer_s(_BUCKET_BYTES / replicas, *ends)
        last = np.where(rest > 0, self.transfer_s(np.maximum(rest, 1.0) / replicas, *ends), 0.0)
        return steps * (whole * full + last)

    def stage_bytes(self, first: int, end: int, tp: int) -> float:
        """Return the gradient bytes that one replica of a stage sums."""
        return float(self.layer_sizes(1, "params_floats")[first:end].sum()) * _FLOAT_BYTES / min(tp, _DEVICES_PER_NODE)

    def score(self, plan: dict[str, Any]) -> Score:
        """Score a plan in the artifact's form with one group of pipelines."""
        (group,) = plan["pipeline_list"]
        size, replicas = int(plan["mbs"]), int(group["dp"][0])
        cuts = [(min(layers), max(layers) + 1) for layers in group["layers_per_stage"]]
        places = [
            [Place(machines[0][0], machines[0][2], int(tp)) for machines, tp in stage]
            for stage in group["tmp_per_stage"]
        ]
        microbatches = math.ceil(self.batch / (size * replicas))
        paces, update, sums = [], 0.0, []
        for stage, ((first, end), row) in enumerate(zip(cuts, places, strict=True)):
            tables = {place: self.layer_times(place.gpu, size, place.tp) for place in set(row)}
            compute = max(float(table[first:end, :2].sum()) for table in tables.values())
            paces.append(compute + self._sent_s(places, cuts, stage, size))
            update = max(update, *(float(table[first, 2]) for table in tables.values()))
            sums.append(self._sum_s(row, first, end))
        seconds = (microbatches - 1) * max(paces) + sum(paces) + update + max(sums)
        devices = Counter[tuple[str, str]]()
        for row in places:
            for place in row:
                devices[place.gpu, place.zone] += place.tp
        rent = sum(count * USD_PER_HOUR[gpu] for (gpu, _), count in devices.items()) / 3600.0 * seconds
        egress = self._egress_usd(places, cuts, microbatches * size)
        return Score(
            iteration_s=seconds,
            usd=rent + egress,
            egress_usd=egress,
            devices=dict(devices),
            problems=tuple(self._problems(places, cuts, size)),
        )

    def _sent_s(self, places: list[list[Place]], cuts: list[tuple[int, int]], stage: int, size: int) -> float:
        stages = len(cuts)
        if stages == 1:
            return 0.0
        seconds = []
        ahead: list[Place | None] = [*places[stage + 1]] if stage + 1 < stages else [None] * len(places[stage])
        behind: list[Place | None] = [*places[stage - 1]] if stage > 0 else [None] * len(places[stage])
        for place, after, before in set(zip(places[stage], ahead, behind, strict=True)):
            on = back = 0.0
            if after is not None:
                on = float(self.transfer_s(self.sent_bytes(cuts[stage][1] - 1, size), place, after))
            if before is not None:
                back = float(self.transfer_s(self.sent_bytes(cuts[stage][0], size), place, before))
            if stage == 0:
                seconds.append(on if stages <= 3 else 2.0 * on)
            else:
                seconds.append(on + back if stage + 1 < stages else 2.0 * back)
        return max(seconds)

    def _sum_s(self, row: list[Place], first: int, end: int) -> float:
        nbytes = self.stage_bytes(first, end, min(place.tp for place in row))
        hops = sorted({(src, dst) for src, dst in pairwise(row)})
        return max((float(self.ring_s(nbytes, len(row), src, dst)) for src, dst in hops), default=0.0)

    def _egress_usd(self, places: list[list[Place]], cuts: list[tuple[int, int]], samples: int) -> float:
        """Return USD per iteration; `samples` of every replica."""
        usd = 0.0
        for stage, (first, end) in enumerate(cuts):
            for replica, place in enumerate(places[stage]):
                for neighbour, layer in ((stage + 1, end - 1), (stage - 1, first)):
                    if 0 <= neighbour < len(cuts):
                        price = self.egress_usd_per_byte(place.zone, places[neighbour][replica].zone)
                        usd += price * samples * self.sent_bytes(layer, 1)
            ring = [*places[stage], places[stage][0]] if len(places[stage]) > 1 else []
            nbytes = self.stage_bytes(first, end, 1) * 2.0 * (len(places[stage]) - 1) / len(places[stage])
            usd += sum(self.egress_usd_per_byte(src.zone, dst.zone) * nbytes for src, dst in pairwise(ring))
        return usd

    def _problems(self, places: list[list[Place]], cuts: list[tuple[int, int]], size: int) -> list[str]:
        problems = []
        for stage, ((first, end), row) in enumerate(zip(cuts, places, strict=True)):
            for place in sorted(set(row)):
                used = self.stage_memory_bytes(place.tp, first, end, size, len(cuts) - stage)
                if used > self.memory_bytes(place.gpu):
                    problems.append(f"stage {stage} takes {used:.4g} bytes of {place.gpu}")
        return problems

    def stage_memory_bytes(self, tp: int, first: int, end: int, size: int, held: int) -> float:
        """Return the peak bytes of a stage that holds the activations of so many microbatches."""
        parameters = float(self.layer_sizes(tp, "params_floats")[first:end].sum())
        kept = float(self.layer_sizes(tp, "act_mem_floats")[first:end].sum()) * _FLOAT_BYTES * size
        return parameters * BYTES_PER_PARAMETER + kept * held + FRAMEWORK_BYTES


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
