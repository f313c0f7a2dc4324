"""The formulas by which Sailor's artifact (SOSP'25, commit cf2c8e3) judges plans, on the tables of an import.

All pipelines have equal cuts and run M = ceil(batch / (microbatch size * pipelines)) microbatches. A stage is busy for
C + P per microbatch. C is forward and backward on its slowest replica. P sends the activation on and the gradient back,
each with the output bytes of its last or first layer, on the curve of min(tp, devices of a node) devices at either end.
The last stage's gradient counts twice, and so does the first stage's activation in a pipeline of more than three
stages. The iteration takes (M - 1) * max(C + P) + sum(C + P) + longest update + longest all-reduce. Updates are those
of a stage's first layer. All-reduces of a stage's fp32 gradients go in buckets of 5e8 bytes over a ring of one device
each; their size is the one at tp 1 divided by min(tp, 4). The slowest hop from one pipeline to the next counts; the hop
that closes the ring counts only for money. A stage needs 24 bytes per parameter, the activations of (stages - stage)
microbatches and 5.06e9 bytes. Written from a description of the artifact. Its error on runs: 6 % median (GH200).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.errors import ProfileMissingError, RequestError
from sailor_cloud.interchange.sailor_tables import ArtifactTables, ModelTables, read_tables
from sailor_cloud.model.document import ProfileRef
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator.engine import Engine, IterationParts, StageParts, StagePlace, UniformPipelines
from sailor_cloud.simulator.memory import Held, States
from sailor_cloud.simulator.sharding import sharding
from sailor_cloud.simulator.stage_table import StageTable

if TYPE_CHECKING:
    from sailor_cloud.simulator.scenario import Scenario

Floats = NDArray[np.float64]

NAME = "sailor-artifact"
_FLOAT_BYTES = 4.0
_BUCKET_BYTES = 5.0e8
_BYTES_PER_PARAMETER = {"weights": 4, "gradients": 4, "optimizer": 16}
_FRAMEWORK_BYTES = 5.06e9
# The most parallel all-reduces for a stage's gradients.
_MOST_SHARDS = 4
# Below this many GB/s a curve is meaningless, and the artifact treats a transfer as impossible.
_SLOWEST_GB_PER_S, _NEVER_S = 0.02, 1e3
# The most stages for which the first one's activation counts once.
_FEW_STAGES = 3
# The median error of its times, as a logarithm: its simulator on 15 GH200 runs.
_ERROR = 0.06


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactMemory:
    """The memory of one model's stages at one tp and microbatch size; shapes as in MemoryTable."""

    parameter_prefix: Floats
    activation_prefix_bytes: Floats
    boundary_bytes: Floats
    weight_bytes: int = 4
    tied_parameters: int = 0
    tied_trainable: int = 0
    measured: bool = False

    def parameters(self, first: Any, end: Any) -> Any:
        return self.parameter_prefix[end] - self.parameter_prefix[first]

    def activation_bytes(self, first: Any, end: Any) -> Any:
        return self.activation_prefix_bytes[end] - self.activation_prefix_bytes[first]

    def states(self, first: Any, end: Any, replicas: int) -> States:
        parameters = self.parameters(first, end)
        return States(**{name: parameters * each for name, each in _BYTES_PER_PARAMETER.items()}, buffers=0.0)

    def held(self, first: Any, end: Any, in_flight: ArrayLike = 1) -> Held:
        kept = self.activation_bytes(first, end) * np.asarray(in_flight)
        return Held(kept, np.zeros(np.shape(kept)))

    def sum_bytes(self, states: States, held: Held) -> Any:
        return states.weights + states.gradients + states.optimizer + held.activations + _FRAMEWORK_BYTES

    def needed_bytes(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> Any:
        """Return the bytes that one device must have; see MemoryTable.needed_bytes."""
        return self.sum_bytes(self.states(first, end, replicas), self.held(first, end, in_flight))

    def peak_parts(self, first: Any, end: Any, *, in_flight: ArrayLike, replicas: int = 1) -> dict[str, Any]:
        """Return the bytes of one device by part."""
        parameters = self.parameters(first, end)
        parts = {name: parameters * each for name, each in _BYTES_PER_PARAMETER.items()}
        kept = self.activation_bytes(first, end) * np.asarray(in_flight)
        return parts | {"activations": kept, "buffers": 0.0, "allocator": 0.0, "framework": _FRAMEWORK_BYTES}


@dataclass(eq=False)
class ArtifactFormulas:
    """The formulas on the tables of one import; repeated results are cached."""

    tables: ArtifactTables
    _stage_tables: dict[tuple[str, str, int, int], StageTable] = field(default_factory=dict)
    _transfers: dict[tuple[float, StagePlace, StagePlace], float] = field(default_factory=dict)
    _rings: dict[tuple[float, int, StagePlace, StagePlace], float] = field(default_factory=dict)

    def stage_table(
        self,
        scenario: Scenario,
        accelerator: str,
        *,
        tp: int,
        microbatch_size: int,
        recompute: Recompute,
        zero_stage: int,
    ) -> StageTable:
        """Return the table of one kind of stage; nothing fits on it if the artifact has no such profile.

        Raises RequestError for a model or a sequence length without tables, and ProfileMissingError for an accelerator
        without any profile of the model.
        """
        model = self.model(scenario)
        if accelerator not in {name for name, _, _ in model.times} or accelerator not in self.tables.memory_bytes:
            raise ProfileMissingError(f"the artifact has no profile of {scenario.decoder.name} on {accelerator}")
        times = model.times.get((accelerator, microbatch_size, tp))
        fits = times is not None and tp in model.parameters and recompute is Recompute.NONE and not zero_stage
        key = (scenario.decoder.name, accelerator, tp, microbatch_size if fits else 0)
        if key not in self._stage_tables:
            part = scenario.catalog.accelerator(accelerator)
            self._stage_tables[key] = self._table(model, part, tp, microbatch_size, times if fits else None)
        return self._stage_tables[key]

    def model(self, scenario: Scenario) -> ModelTables:
        """Return the tables of a scenario's model. Raises RequestError if there are none."""
        name, training = scenario.decoder.name, scenario.job.training
        model = self.tables.models.get(name)
        if model is None:
            known = ", ".join(sorted(self.tables.models))
            raise RequestError(f"engine {NAME} has no profile of model {name}; it has {known}")
        if training.sequence_length != model.sequence_length:
            raise RequestError(
                f"engine {NAME} has profiles of {name} at sequence length {model.sequence_length}; the job trains at "
                f"{training.sequence_length}"
            )
        if model.layers != scenario.decoder.layers:
            raise RequestError(
                f"the artifact counts {model.layers} layers of {name}, we count {scenario.decoder.layers}; "
                f"engine {NAME} can't cut it"
            )
        return model

    def _table(self, model: ModelTables, part: Any, tp: int, microbatch_size: int, times: Floats | None) -> StageTable:
        spent = np.zeros((model.layers, 3)) if times is None else times
        width = tp if tp in model.parameters else 1
        memory = ArtifactMemory(
            parameter_prefix=_prefix(model.parameters[width]),
            activation_prefix_bytes=_prefix(model.kept[width] * _FLOAT_BYTES * microbatch_size),
            boundary_bytes=np.concatenate([[0.0], model.sent[1][:-1] * _FLOAT_BYTES * microbatch_size, [0.0]]),
        )
        return StageTable(
            accelerator=part,
            tp=tp,
            microbatch_size=microbatch_size,
            recompute=Recompute.NONE,
            zero_stage=0,
            forward_prefix_s=_prefix(spent[:, 0]),
            backward_prefix_s=_prefix(spent[:, 1]),
            weights_prefix_s=np.zeros(model.layers + 1),
            # The formulas themselves count updates, once per stage.
            update_prefix_s=np.zeros(model.layers + 1),
            gradient_prefix_bytes=_prefix(model.parameters[1] * _FLOAT_BYTES),
            memory=memory,
            message_s=0.0,
            sums_s=0.0,
            sharding=sharding(0, weight_bytes=4, gradient_bytes=4),
            tied_sharding=sharding(0, weight_bytes=4, gradient_bytes=4),
            limit_bytes=0 if times is None else int(self.tables.memory_bytes[part.name]),
            error=_ERROR,
            measured=True,
            measured_size=None,
            exchange_share=0.0,
            profile=ProfileRef(id=NAME, sha256=""),
        )

    def problem(self, pipelines: UniformPipelines, scenario: Scenario) -> str | None:
        """Return why the formulas can't judge some pipelines; None if they can."""
        times = self.model(scenario).times
        for place in sorted({place for row in pipelines.rows for place in row}):
            if (place.accelerator, pipelines.microbatch_size, place.tp) not in times:
                sizes = sorted({size for name, size, tp in times if (name, tp) == (place.accelerator, place.tp)})
                return (
                    f"the artifact did not profile {place.accelerator} at tp {place.tp} with microbatches of "
                    f"{pipelines.microbatch_size}; there it has {', '.join(map(str, sizes)) or 'none'}"
                )
        return None

    def iteration(self, pipelines: UniformPipelines, scenario: Scenario) -> IterationParts:
        """Return the parts of an iteration; the pipelines must have no problem."""
        model, size, cut = self.model(scenario), pipelines.microbatch_size, pipelines.cut
        rows, spans = pipelines.rows, list(pairwise(pipelines.cut))
        sent = model.sent[1] * (_FLOAT_BYTES * size)
        stages = []
        for s, (first, end) in enumerate(spans):
            places = {row[s] for row in rows}
            tables = {place: model.times[place.accelerator, size, place.tp] for place in places}
            compute = max(float(table[first:end, :2].sum()) for table in tables.values())
            transfer = max(
                self._transfer_s(s, row[max(s - 1, 0) : s + 2], len(spans), float(sent[first]), float(sent[end - 1]))
                for row in {row[max(s - 1, 0) : s + 2]: row for row in rows}.values()
            )
            nbytes = self.gradient_bytes(model, first, end) / min(_MOST_SHARDS, *(place.tp for place in places))
            hops = {(a[s].at(1), b[s].at(1)) for a, b in pairwise(rows)}
            stages.append(
                StageParts(
                    compute_s=compute,
                    transfer_s=transfer,
                    update_s=max(float(table[first, 2]) for table in tables.values()),
                    sync_s=max((self.ring_s(nbytes, len(rows), *hop) for hop in sorted(hops)), default=0.0),
                )
            )
        busy = [stage.compute_s + stage.transfer_s for stage in stages]
        seconds = (pipelines.microbatches - 1) * max(busy) + sum(busy)
        seconds += max(stage.update_s for stage in stages) + max(stage.sync_s for stage in stages)
        return IterationParts(
            seconds=seconds, stages=tuple(stages), traffic=self._traffic(pipelines, model, cut, sent / size)
        )

    def _transfer_s(
        self, stage: int, around: tuple[StagePlace, ...], stages: int, first_bytes: float, last_bytes: float
    ) -> float:
        """Return the transfer seconds of a stage's replica; `around`: its neighbours' places with its own."""
        if stages == 1:
            return 0.0
        at = min(stage, 1)
        on = back = 0.0
        if stage + 1 < stages:
            on = self.transfer_s(last_bytes, around[at], around[at + 1])
        if stage > 0:
            back = self.transfer_s(first_bytes, around[at], around[at - 1])
        if stage == 0:
            return on * self.ends(stages)[0]
        return on + back if stage + 1 < stages else self.ends(stages)[1] * back

    def ends(self, stages: int) -> tuple[float, float]:
        """Return how many times the first stage's activation and the last one's gradient count."""
        return 1.0 if stages <= _FEW_STAGES else 2.0, 2.0

    def cuts_s(self, scenario: Scenario, size: int, src: StagePlace, dst: StagePlace) -> tuple[Floats, Floats]:
        """Return the seconds of an activation and of its gradient over a cut before each layer; see Formulas."""
        sent = self.model(scenario).sent[1] * (_FLOAT_BYTES * size)
        on, back = np.zeros(len(sent) + 1), np.zeros(len(sent) + 1)
        for layer in range(1, len(sent)):
            on[layer] = self.transfer_s(float(sent[layer - 1]), src, dst)
            back[layer] = self.transfer_s(float(sent[layer]), dst, src)
        return on, back

    def all_reduces_s(
        self, scenario: Scenario, replicas: int, tp: int, hops: Sequence[tuple[StagePlace, StagePlace]]
    ) -> Floats:
        """Return the seconds of every stage's all-reduce; see Formulas."""
        prefix = _prefix(self.model(scenario).parameters[1] * _FLOAT_BYTES) / min(_MOST_SHARDS, tp)
        nbytes = np.maximum(prefix[None, :] - prefix[:, None], 0.0)
        distinct, where = np.unique(nbytes, return_inverse=True)
        ends = {(src.at(1), dst.at(1)) for src, dst in hops}
        each = [max(self.ring_s(float(size), replicas, *hop) for hop in sorted(ends)) for size in distinct]
        return np.array(each)[where].reshape(nbytes.shape)

    def transfer_s(self, nbytes: float, src: StagePlace, dst: StagePlace) -> float:
        """Return the seconds of one transfer between two stages' places."""
        key = (nbytes, src, dst)
        if key not in self._transfers:
            ends = [min(place.tp, self.tables.devices_per_node[place.accelerator]) for place in (src, dst)]
            curve = self.tables.curves.get((src.zone, src.accelerator, ends[0], dst.zone, dst.accelerator, ends[1]))
            if curve is None:
                raise RequestError(
                    f"engine {NAME} has no bandwidth between {ends[0]} devices of {src.accelerator} in {src.zone} and "
                    f"{ends[1]} of {dst.accelerator} in {dst.zone}"
                )
            self._transfers[key] = float(_over(curve, nbytes))
        return self._transfers[key]

    def ring_s(self, nbytes: float, replicas: int, src: StagePlace, dst: StagePlace) -> float:
        """Return the seconds of an all-reduce if all of its hops were like the one from src to dst."""
        key = (nbytes, replicas, src, dst)
        if replicas < 2 or not nbytes:
            return 0.0
        if key not in self._rings:
            whole, rest = divmod(nbytes, _BUCKET_BYTES)
            full = whole * self.transfer_s(_BUCKET_BYTES / replicas, src, dst) if whole else 0.0
            last = self.transfer_s(max(rest, 1.0) / replicas, src, dst) if rest else 0.0
            self._rings[key] = 2.0 * (replicas - 1) * (full + last)
        return self._rings[key]

    def rings_s(self, nbytes: Floats, replicas: int, src: StagePlace, dst: StagePlace) -> Floats:
        """Return `ring_s` of many sizes; infinite without a known bandwidth."""
        curve = self.tables.curves.get((src.zone, src.accelerator, 1, dst.zone, dst.accelerator, 1))
        if curve is None:
            return np.full(np.shape(nbytes), np.inf)
        whole, rest = np.divmod(nbytes, _BUCKET_BYTES)
        full, last = (_over(curve, sent / replicas) for sent in (_BUCKET_BYTES, np.maximum(rest, 1.0)))
        return np.asarray(2.0 * (replicas - 1) * (whole * full + np.where(rest > 0.0, last, 0.0)))

    def updates_s(self, scenario: Scenario, size: int, place: StagePlace) -> Floats:
        """Return the seconds of the optimizer step of stages by their first layer; see Formulas."""
        return self.model(scenario).times[place.accelerator, size, place.tp][:, 2]

    def shards(self, tp: int) -> int:
        """Return the number of parallel all-reduces for a stage's gradients."""
        return min(_MOST_SHARDS, tp)

    @staticmethod
    def gradient_bytes(model: ModelTables, first: int, end: int) -> float:
        """Return the bytes of gradients of layers [first, end), of all devices of a replica."""
        return float(model.parameters[1][first:end].sum()) * _FLOAT_BYTES

    def _traffic(
        self, pipelines: UniformPipelines, model: ModelTables, cut: Sequence[int], sent: Floats
    ) -> Mapping[tuple[str, str], float]:
        """Return the bytes per iteration from zone to zone; every pipeline counts the most microbatches of any."""
        rows, samples = pipelines.rows, pipelines.microbatches * pipelines.microbatch_size
        crossing: dict[tuple[str, str], float] = {}

        def add(src: StagePlace, dst: StagePlace, nbytes: float) -> None:
            if src.zone != dst.zone:
                crossing[src.zone, dst.zone] = crossing.get((src.zone, dst.zone), 0.0) + nbytes

        for row in rows:
            for s, (src, dst) in enumerate(pairwise(row)):
                add(src, dst, float(sent[cut[s + 1] - 1]) * samples)
                add(dst, src, float(sent[cut[s + 1]]) * samples)
        for s, (first, end) in enumerate(pairwise(cut)):
            nbytes = self.gradient_bytes(model, first, end) * 2.0 * (len(rows) - 1) / len(rows)
            for before, after in pairwise([*rows, rows[0]] if len(rows) > 1 else rows):
                add(before[s], after[s], nbytes)
        return {key: crossing[key] for key in sorted(crossing)}


def _over(curve: tuple[float, float, float], nbytes: Any) -> Any:
    """Return the seconds of transfers over a link with this curve."""
    x = np.log2(nbytes / 1e6)
    rate = curve[0] * x * x + curve[1] * x + curve[2]
    return np.where(rate < _SLOWEST_GB_PER_S, _NEVER_S, nbytes / 1e9 / np.maximum(rate, _SLOWEST_GB_PER_S))


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def sailor_artifact(profiles: Path | None) -> Engine:
    """Return the engine for the tables next to imported compute profiles. Raises as read_tables does."""
    return Engine(
        name=NAME,
        zero_stages=(0,),
        pipelined_zero_stages=(0,),
        recompute=(Recompute.NONE,),
        uniform=True,
        scatter_sums=False,
        zone_by_zone=False,
        formulas=ArtifactFormulas(read_tables(profiles)),
    )
