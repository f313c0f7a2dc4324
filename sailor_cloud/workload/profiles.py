"""Compute profiles: measured layer times, else a fitted model; else kernels in half precision, a roofline in others."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from sailor_cloud import resources
from sailor_cloud.catalog.providers import own_data
from sailor_cloud.errors import DataError, ProfileMissingError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import ProfileRef
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload import kernels, roofline
from sailor_cloud.workload.error_model import FILE as ERRORS_FILE
from sailor_cloud.workload.error_model import ErrorModel, read_error_model
from sailor_cloud.workload.features import FEATURES, LayerKind, layer_features
from sailor_cloud.workload.fit import REPEAT_P50, REPEAT_P90
from sailor_cloud.workload.kernels import Generation, Program
from sailor_cloud.workload.local_costs import FILE as LOCAL_FILE
from sailor_cloud.workload.local_costs import LocalCosts, read_local_costs
from sailor_cloud.workload.measured import MeasuredLayer, read_measured
from sailor_cloud.workload.models.layers import Attention, layer_costs
from sailor_cloud.workload.own_measurements import FILE as OWN_FILE
from sailor_cloud.workload.own_measurements import OwnMeasurements, own_file
from sailor_cloud.workload.own_measurements import read as read_own
from sailor_cloud.workload.profile_file import SCHEMA
from sailor_cloud.workload.stacks import DEFAULT, Stack, read_stacks
from sailor_cloud.workload.stacks import FILE as STACKS_FILE

Floats = NDArray[np.float64]
PLAIN = Program(attention=Attention.PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Seconds per layer of one microbatch (forward, backward) and of one optimizer step, shape [layers].

    `error`: the median error of such times, as a logarithm; `measured` is False without a run of the accelerator or of
    this precision. `exchange_share`: the share of a block's seconds for tensor-parallel communication. `measured_size`:
    the largest microbatch size that was measured; None if unknown.
    """

    forward_s: Floats
    backward_s: Floats
    update_s: Floats
    error: float
    measured: bool
    profile: ProfileRef
    exchange_share: float = 0.0
    measured_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfile:
    """The fitted model of one accelerator at one precision, and the measured layers behind it.

    `coefficients[kind][pass][feature]` are seconds per unit of the feature; `update` is seconds per layer and per
    parameter. A profile with `models` covers only these, and takes precedence over one without.
    """

    ref: ProfileRef
    accelerator: str
    stack: str
    precision: Precision
    fitted_on: str
    coefficients: dict[LayerKind, dict[str, Floats]]
    update: Floats
    error_p50: float
    error_p90: float
    as_of: str
    source: str
    models: tuple[str, ...] = ()
    measured: tuple[MeasuredLayer, ...] = ()

    def largest_size(self, model: str) -> int | None:
        """Return the largest measured microbatch size of a model, or of all if it has none; None without any."""
        sizes = {row.model: row.microbatch_size for row in sorted(self.measured, key=lambda row: row.microbatch_size)}
        return sizes.get(model, max(sizes.values(), default=None))


class LayerShape(TypedDict):
    """The shape of a layer's work: sequences and tokens on one of `tp` devices, at a precision."""

    sequence_length: int
    microbatch_size: int
    tp: int
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProfiles:
    """All profiles of a data folder, by accelerator and precision.

    `machine`: the one that runs local devices; without it, each has a core of the machine that was timed.
    """

    entries: tuple[ComputeProfile, ...]
    stacks: Mapping[str, Stack]
    local: LocalCosts
    generations: tuple[Generation, ...]
    errors: ErrorModel
    own: OwnMeasurements = field(default_factory=OwnMeasurements)
    machine: LocalMachine | None = None
    _index: dict[tuple[str, Precision, str | None], ComputeProfile] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {
            (entry.accelerator, entry.precision, model): entry
            for entry in self.entries
            for model in entry.models or (None,)
        }
        object.__setattr__(self, "_index", index)

    def names(self) -> tuple[str, ...]:
        """Return the accelerators that have a profile, sorted."""
        return tuple(sorted({entry.accelerator for entry in self.entries}))

    def get(self, accelerator: str, precision: Precision, *, model: str | None = None) -> ComputeProfile | None:
        """Return the profile for a model, or the one for any model."""
        return self._index.get((accelerator, precision, model)) or self._index.get((accelerator, precision, None))

    def stack(self, accelerator: str) -> Stack:
        """Return the constants of an accelerator's software, or the default ones."""
        return self.stacks.get(accelerator, self.stacks[DEFAULT])

    def local_core_s(self, accelerator: Accelerator, seconds: float) -> float:
        """Return the time of `seconds` core-seconds at speed 1 on the machine; 0 for other accelerators."""
        if self.machine is None or not accelerator.is_emulated:
            return 0.0
        return seconds / self.machine.speed

    def free_cores(self, nodes: int) -> float:
        """Return the cores that the controller and `nodes` nodes leave for ranks.

        At least a quarter of the cores, since it is not measured how many nodes a core can carry.
        """
        assert self.machine is not None, "a machine was named or measured"
        busy = self.local.controller_cores + nodes * self.local.node_cores
        return max(self.machine.cores / 4.0, self.machine.cores - busy)

    def layer_times(
        self,
        accelerator: Accelerator,
        decoder: Decoder,
        *,
        program: Program = PLAIN,
        ring_bytes_per_s: float | None = None,
        **shape: Unpack[LayerShape],
    ) -> LayerTimes:
        """Return the seconds of every layer on one of `tp` devices, corrected by the owner's runs.

        `program` matters only for layers that were not measured: GPUs were measured with plain attention, the local
        provider's with the attention that it trains with. `ring_bytes_per_s`: as in `kernel_times`. Raises
        ProfileMissingError without a profile and without a datasheet figure for the precision.
        """
        found = self._layer_times(accelerator, decoder, program, ring_bytes_per_s, shape)
        belief = self.own.layers(learned_of(accelerator), shape["precision"].value, decoder.name)
        if not belief.runs:
            return found
        factor = math.exp(math.hypot(found.error, self.lasting_machine_error(accelerator)) * belief.mean)
        return replace(
            found,
            forward_s=found.forward_s * factor,
            backward_s=found.backward_s * factor,
            update_s=found.update_s * factor,
        )

    def lasting_machine_error(self, accelerator: Accelerator) -> float:
        """Return the unknown of a local device's machine that is the same in every run: half of the variance."""
        if self.machine is None or not accelerator.is_emulated:
            return 0.0
        return self.errors.at_least(self.local.error_p50, self.local.error_p90) * math.sqrt(0.5)

    def _layer_times(
        self,
        accelerator: Accelerator,
        decoder: Decoder,
        program: Program,
        ring_bytes_per_s: float | None,
        shape: LayerShape,
    ) -> LayerTimes:
        """Return the seconds of every layer without the owner's corrections."""
        precision = shape["precision"]
        entry = self.get(accelerator.name, precision, model=decoder.name)
        if entry is None:
            if accelerator.peak_tflops(precision) is None:
                raise ProfileMissingError(
                    f"{accelerator.name} has neither a compute profile nor a datasheet rate for {precision}; "
                    "choose another precision or leave it out"
                )
            if precision in kernels.PRECISIONS:
                generation = kernels.generation_of(accelerator, self.generations)
                times = kernels.kernel_times(
                    accelerator,
                    decoder,
                    generation.constants,
                    program=program,
                    ring_bytes_per_s=ring_bytes_per_s,
                    **shape,
                )
                error = self.errors.layers_on(accelerator, precision, generation, program=program)
                return _of_kernels(times, accelerator, precision, generation, error)
            roof = roofline.roofline_times(accelerator, decoder, attention=program.attention, **shape)
            return _of_roofline(roof, accelerator, precision, self.errors)
        rows = layer_features(decoder, **shape)
        size = shape["microbatch_size"], shape["sequence_length"], shape["tp"]
        measured = {row.key: row for row in entry.measured}
        found = {kind: measured.get((decoder.name, kind, *size)) for kind in LayerKind}
        seconds = {kind: _seconds(entry, rows, kind, found[kind]) for kind in LayerKind}
        overhead = self.stack(accelerator.name).timing_overhead_s
        costs = layer_costs(decoder, shape["sequence_length"], shape["tp"])
        errors = (REPEAT_P50, REPEAT_P90) if all(found.values()) else (entry.error_p50, entry.error_p90)
        speed = self.machine.speed if self.machine is not None and accelerator.is_emulated else 1.0
        forward, backward = ({kind: both[way] for kind, both in seconds.items()} for way in (0, 1))
        return LayerTimes(
            # Two of a layer's three passes are backward.
            forward_s=_in_training(decoder, forward, overhead / 3.0) / speed,
            backward_s=_in_training(decoder, backward, overhead * 2.0 / 3.0) / speed,
            update_s=(entry.update[0] + entry.update[1] * costs.trainable) / speed,
            error=self.errors.at_least(*errors),
            measured=True,
            profile=entry.ref,
            measured_size=entry.largest_size(decoder.name),
        )

    def activation_bytes(
        self,
        accelerator: str,
        decoder: Decoder,
        *,
        sequence_length: int,
        microbatch_size: int,
        tp: int,
        precision: Precision,
    ) -> dict[LayerKind, float]:
        """Return the measured bytes that layers of one microbatch keep on one device.

        They are proportional to the microbatch size, from the largest that was measured.
        """
        entry = self.get(accelerator, precision, model=decoder.name)
        measured = sorted(entry.measured if entry else (), key=lambda row: row.microbatch_size)
        return {
            row.layer_kind: row.activation_bytes / row.microbatch_size * microbatch_size
            for row in measured
            if row.activation_bytes is not None
            and (row.model, row.sequence_length, row.tp) == (decoder.name, sequence_length, tp)
        }


def learned_of(accelerator: Accelerator) -> str:
    """Return an accelerator's name in the owner's runs; local ones are cores of one machine."""
    return "this machine" if accelerator.is_emulated else accelerator.name


def load(root: Path | None = None, *, profiles: Path | None = None) -> ComputeProfiles:
    """Return the profiles under `root` (default: the shipped data).

    `profiles` names another folder, by default the user's. Its profiles and table of stacks take precedence over the
    shipped ones, and those over providers' ones. Raises DataError.
    """
    profiles = profiles or (resources.folders().profiles if root is None else None)
    shipped = (root or resources.data_root()) / "compute_profiles"
    folders = [*own_data("compute_profiles"), shipped, *([] if profiles is None else [profiles])]
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"no folder of compute profiles at {folder}")
    entries = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.json"))):
        entry = _read(path)
        entries[entry.accelerator, entry.precision, entry.models] = entry
    own = [folder / STACKS_FILE for folder in folders if (folder / STACKS_FILE).is_file()]
    kernel_tables = [folder / kernels.FILE for folder in folders if (folder / kernels.FILE).is_file()]
    return ComputeProfiles(
        entries=tuple(entries[key] for key in sorted(entries)),
        stacks=read_stacks(own[-1]),
        local=read_local_costs(shipped / LOCAL_FILE),
        generations=kernels.read_generations(kernel_tables[-1]),
        errors=read_error_model(shipped / ERRORS_FILE),
        own=_own(profiles),
    )


def _own(profiles: Path | None) -> OwnMeasurements:
    """Return the owner's measurements: those of the named folder, else the kept ones."""
    path = profiles / OWN_FILE if profiles is not None and (profiles / OWN_FILE).is_file() else own_file()
    return OwnMeasurements(runs=read_own(path) if path.is_file() else ())


def _read(path: Path) -> ComputeProfile:
    try:
        text = path.read_bytes()
        raw: dict[str, Any] = json.loads(text)
        if "schema" not in raw:
            raise DataError(f"{path} is not a compute profile; 'sailor-cloud profile' writes one")
        if raw["schema"] != SCHEMA:
            raise DataError(f"{path}: schema is {raw['schema']!r}, this version reads {SCHEMA}")
        table = path.with_suffix(".csv")
        measured = read_measured(table) if table.is_file() else ()
        digest = hashlib.sha256(text + (table.read_bytes() if table.is_file() else b"")).hexdigest()
        return ComputeProfile(
            ref=ProfileRef(id=path.stem, sha256=digest),
            accelerator=raw["accelerator"],
            stack=raw["stack"],
            precision=Precision(raw["dtype"]),
            fitted_on=raw["fitted_on"],
            coefficients={kind: _passes(raw["coefficients"].get(kind, {}), path) for kind in LayerKind},
            update=np.array([raw["coefficients"]["update"][name] for name in ("per_layer", "per_parameter")]),
            error_p50=float(raw["error_p50"]),
            error_p90=float(raw["error_p90"]),
            as_of=raw["as_of"],
            source=raw["source"],
            models=tuple(raw.get("models", ())),
            measured=measured,
        )
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a compute profile: {error!r}") from error


def _passes(raw: dict[str, dict[str, float]], path: Path) -> dict[str, Floats]:
    unknown = sorted({name for each in raw.values() for name in each} - set(FEATURES))
    if unknown:
        raise DataError(f"{path}: unknown features {', '.join(unknown)}; known: {', '.join(FEATURES)}")
    return {
        direction: np.array([float(raw.get(direction, {}).get(name, 0.0)) for name in FEATURES])
        for direction in ("forward", "backward")
    }


def _seconds(
    entry: ComputeProfile, rows: Mapping[LayerKind, Floats], kind: LayerKind, found: MeasuredLayer | None
) -> tuple[float, float]:
    """Return forward and backward of one kind of layer: measured, else fitted."""
    if found is not None:
        return found.forward_s, found.backward_s
    fits = entry.coefficients[kind]
    return float(rows[kind] @ fits["forward"]), float(rows[kind] @ fits["backward"])


def _in_training(decoder: Decoder, seconds: dict[LayerKind, float], overhead_s: float) -> Floats:
    """Spread seconds by kind over the layers, without the overhead of timing each alone."""
    blocks = [seconds[LayerKind.BLOCK]] * decoder.blocks
    return np.maximum(np.array([seconds[LayerKind.EMBEDDING], *blocks, seconds[LayerKind.HEAD]]) - overhead_s, 0.0)


def _of_kernels(
    times: kernels.KernelTimes,
    accelerator: Accelerator,
    precision: Precision,
    generation: Generation,
    error: float,
) -> LayerTimes:
    figures = f"{accelerator!r} {precision} {generation!r}"
    return LayerTimes(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        update_s=times.update_s,
        error=error,
        measured=generation.measured(accelerator, precision),
        exchange_share=times.exchange_share,
        profile=ProfileRef(
            id=f"kernels {accelerator.name} {precision}", sha256=hashlib.sha256(figures.encode()).hexdigest()
        ),
    )


def _of_roofline(
    times: roofline.RooflineTimes, accelerator: Accelerator, precision: Precision, errors: ErrorModel
) -> LayerTimes:
    figures = f"{accelerator!r} {precision}"
    return LayerTimes(
        forward_s=times.forward_s,
        backward_s=times.backward_s,
        update_s=times.update_s,
        error=errors.at_least(roofline.ERROR_P50, roofline.ERROR_P90),
        measured=False,
        profile=ProfileRef(
            id=f"roofline {accelerator.name} {precision}", sha256=hashlib.sha256(figures.encode()).hexdigest()
        ),
    )
