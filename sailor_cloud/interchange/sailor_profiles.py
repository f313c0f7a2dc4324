"""Reads the layer times of Sailor's artifact: `[model][gpu][mbs][tp][layer]` = forward, backward, update seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sailor_cloud.errors import DataError
from sailor_cloud.interchange.sailor_names import (
    DEFAULT_SEQUENCE_LENGTH,
    MODELS,
    SEQUENCE_LENGTHS,
    UPDATED_BLOCKS,
    our_accelerator,
    our_model,
)
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.offer import Accelerator, Precision
from sailor_cloud.workload import decoder, layer_costs
from sailor_cloud.workload.features import LayerKind, layer_features
from sailor_cloud.workload.fit import NOTHING_KNOWN, Sample, fit
from sailor_cloud.workload.measured import MeasuredLayer, write_measured
from sailor_cloud.workload.profile_file import ProfileOrigin, write_profile
from sailor_cloud.workload.roofline import feature_guess

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactProfiles:
    """Measured layers by our name of the accelerator."""

    layers: dict[str, tuple[MeasuredLayer, ...]]


def read_profiles(times: dict[str, Any], sizes: dict[str, Any]) -> ArtifactProfiles:
    """Convert the artifact's tables to measured layers.

    Blocks are averaged over their number. The layers after the last block count as the head, and are left out if they
    keep no logits: the artifact's GPT-Neo was profiled without its head. `times` is simulator_profiles.json, `sizes`
    llm_info.json. Raises DataError for a layer without sizes.
    """
    found: dict[str, list[MeasuredLayer]] = {}
    for model, by_gpu in times.items():
        for gpu, by_batch in by_gpu.items():
            for microbatch_size, by_tp in by_batch.items():
                for tp, layers in by_tp.items():
                    rows = _rows(model, int(microbatch_size), int(tp), layers, sizes.get(model, {}))
                    found.setdefault(our_accelerator(gpu), []).extend(rows)
    return ArtifactProfiles(layers={name: tuple(rows) for name, rows in sorted(found.items())})


def samples(layers: tuple[MeasuredLayer, ...], precision: Precision) -> Iterator[Sample]:
    """Yield the layers that a fit can use: those of models with a preset."""
    presets = {ours: _decoder(ours) for ours in MODELS.values()}
    for row in layers:
        sizes = presets.get(row.model)
        if sizes is None:
            continue
        features = layer_features(
            sizes,
            sequence_length=row.sequence_length,
            microbatch_size=row.microbatch_size,
            tp=row.tp,
            precision=precision,
        )
        parameters = layer_costs(sizes, row.sequence_length, row.tp).parameters
        index = {LayerKind.EMBEDDING: 0, LayerKind.BLOCK: 1, LayerKind.HEAD: -1}[row.layer_kind]
        yield Sample(
            kind=row.layer_kind,
            model=row.model,
            microbatch_size=row.microbatch_size,
            sequence_length=row.sequence_length,
            tp=row.tp,
            features=features[row.layer_kind],
            parameters=int(parameters[index]),
            forward_s=row.forward_s,
            backward_s=row.backward_s,
            update_s=row.update_s if row.layer_kind is LayerKind.BLOCK else 0.0,
        )


def write_profiles(
    folder: Path,
    profiles: ArtifactProfiles,
    accelerators: Mapping[str, Accelerator],
    *,
    precision: Precision,
    as_of: str,
    source: str,
    progress: Callable[[int, str], None] = lambda done, accelerator: None,
) -> tuple[str, ...]:
    """Write fitted profiles and tables of measured layers; return the accelerators written.

    The fit covers microbatch sizes and degrees that were not measured; models without a preset are only in the table.
    Models that ran in TF32 are separate: they form a TF32 profile, and an FP32 profile, as the artifact calls them, for
    these models alone. `progress` gets the number of finished accelerators before each one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for done, (accelerator, layers) in enumerate(profiles.layers.items()):
        progress(done, accelerator)
        part = accelerators.get(accelerator)
        fast = with_tf32(layers, part) if precision is Precision.FP32 and part is not None else ()
        declared = tuple(row for row in layers if row.model not in fast)
        faster = tuple(row for row in layers if row.model in fast)
        files = (
            (accelerator, precision, declared, ()),
            (f"{accelerator}.tf32", Precision.TF32, faster, ()),
            (f"{accelerator}.tf32-as-fp32", precision, faster, fast),
        )
        for name, kind, rows, models in files:
            usable = list(samples(rows, kind))
            if not usable:
                continue
            origin = ProfileOrigin(
                accelerator=accelerator,
                stack="Sailor's Megatron and DeepSpeed",
                precision=kind,
                fitted_on=_fitted_on(usable, rows) + (", which ran in TF32" if rows is faster else ""),
                as_of=as_of,
                source=source,
                models=models,
            )
            guess = NOTHING_KNOWN if part is None else feature_guess(part, Precision.TF32 if rows is faster else kind)
            write_profile(folder / f"{name}.json", origin, fit(usable, guess=guess))
            write_measured(folder / f"{name}.csv", rows)
            written.append(accelerator)
    return tuple(dict.fromkeys(written))


def with_tf32(layers: Iterable[MeasuredLayer], part: Accelerator) -> tuple[str, ...]:
    """Return the models that were faster than the accelerator's FP32 units can be, hence ran in TF32; sorted.

    The artifact does not record the use of TF32.
    """
    limit = part.peak_tflops(Precision.FP32)
    if limit is None or part.peak_tflops(Precision.TF32) is None:
        return ()
    presets = {ours: _decoder(ours) for ours in MODELS.values()}
    fast = set()
    for row in layers:
        if row.model in presets and row.layer_kind is LayerKind.BLOCK:
            flops = layer_costs(presets[row.model], row.sequence_length, row.tp).forward_flops[1] * row.microbatch_size
            if flops / row.forward_s > limit * 1e12:
                fast.add(row.model)
    return tuple(sorted(fast))


def _fitted_on(usable: Sequence[Sample], rows: Iterable[MeasuredLayer]) -> str:
    models = sorted({row.model for row in rows})
    return f"{len({sample.configuration for sample in usable})} configurations of {', '.join(models)}"


def _decoder(preset: str) -> Decoder:
    return decoder(ModelSource(preset=preset))


def _logits(model: str, tp: int) -> float:
    """Elements of one sample's logits on one device."""
    return SEQUENCE_LENGTHS.get(model, DEFAULT_SEQUENCE_LENGTH) * _decoder(our_model(model)).vocab_size / tp


def _rows(
    model: str, microbatch_size: int, tp: int, layers: dict[str, list[float]], sizes: dict[str, Any]
) -> Iterator[MeasuredLayer]:
    # Not every timed degree has sizes; the shares of parameters are similar at all degrees.
    known: dict[str, Any] = sizes.get(str(tp)) or next(iter(sizes.values()), {})
    if set(known) != set(layers):
        raise DataError(
            f"simulator_profiles.json times {len(layers)} layers of {model}, llm_info.json has {len(known)}"
        )
    count = len(layers)
    blocks = _decoder(our_model(model)).blocks if model in MODELS else count - 2
    spans = {
        LayerKind.EMBEDDING: range(1),
        LayerKind.BLOCK: range(1, blocks + 1),
        LayerKind.HEAD: range(blocks + 1, count),
    }
    block_parameters = known["1"]["params_floats"]
    for kind, span in spans.items():
        share = blocks if kind is LayerKind.BLOCK else 1
        forward, backward = (sum(layers[str(i)][part] for i in span) / share for part in (0, 1))
        parameters = sum(known[str(i)]["params_floats"] for i in span) / share
        kept = sum(known[str(i)]["act_mem_floats"] for i in span) / share
        if kind is LayerKind.HEAD and model in MODELS and kept < _logits(model, tp):
            continue
        yield MeasuredLayer(
            model=our_model(model),
            layer_kind=kind,
            microbatch_size=microbatch_size,
            sequence_length=SEQUENCE_LENGTHS.get(model, DEFAULT_SEQUENCE_LENGTH),
            tp=tp,
            forward_s=forward,
            backward_s=backward,
            update_s=layers["1"][2] / UPDATED_BLOCKS * parameters / block_parameters,
            activation_bytes=round(kept * _FP32_BYTES * microbatch_size) if str(tp) in sizes else None,
        )
