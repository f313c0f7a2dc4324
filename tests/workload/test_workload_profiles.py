"""Layer times: measured, fitted, or by roofline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sailor_cloud import catalog, resources
from sailor_cloud.errors import DataError, ProfileMissingError
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.offer import Precision
from sailor_cloud.workload import ComputeProfiles, decoder, decoder_from_config, profiles
from sailor_cloud.workload.features import FEATURES, REDUCED_DEGREES, LayerKind, layer_features
from sailor_cloud.workload.fit import REPEAT_P50, REPEAT_P90, Guess, Sample, families, fit, held_out_errors
from sailor_cloud.workload.measured import MeasuredLayer, read_measured, write_measured
from sailor_cloud.workload.profiles import ComputeProfile
from sailor_cloud.workload.roofline import feature_guess, roofline_times

CATALOG = catalog.load()
SHIPPED = profiles.load()
OPT = decoder(ModelSource(preset="sailor-opt-350"))
COVERED = (
    "A100-40",
    "A100-80",
    "V100-16",
    "H100-80",
    "H200-141",
    "GH-96",
    "L4-24",
    "T4-16",
    "A10G-24",
    "RTX-2080-11",
    "RTX-3090-24",
    "Titan-RTX-24",
)
FOLDER = resources.data_root() / "compute_profiles"


def times(accelerator: str, precision: Precision, sizes=OPT, **changes):
    settings = {"sequence_length": 2048, "microbatch_size": 2, "tp": 1, **changes}
    return SHIPPED.layer_times(CATALOG.accelerator(accelerator), sizes, precision=precision, **settings)


@pytest.mark.parametrize("accelerator", COVERED)
def test_every_covered_gpu_answers_or_refuses_at_every_precision(accelerator: str) -> None:
    part = CATALOG.accelerator(accelerator)
    for precision in Precision:
        if part.peak_tflops(precision) is None and SHIPPED.get(accelerator, precision) is None:
            with pytest.raises(ProfileMissingError, match=f"{accelerator} has neither .* {precision}"):
                times(accelerator, precision)
            continue
        found = times(accelerator, precision)
        assert (found.forward_s > 0).all()
        assert (found.backward_s[1:] > 0).all()
        assert (found.update_s > 0).all()
        assert 0 < found.error < 0.5


@pytest.mark.parametrize("accelerator", ["CPU-fast", "CPU-slow"])
def test_processors_answer_in_fp32_and_refuse_every_other_precision_with_what_to_do(accelerator: str) -> None:
    assert (times(accelerator, Precision.FP32).forward_s > 0).all()
    for precision in (Precision.TF32, Precision.BF16, Precision.FP16):
        message = f"{accelerator} has neither a compute profile nor a datasheet rate for {precision}; choose another"
        with pytest.raises(ProfileMissingError, match=message):
            times(accelerator, precision)


def test_the_local_slow_accelerator_takes_exactly_twice_the_layer_times_of_the_fast_one() -> None:
    tiny = decoder_from_config(
        {
            "model_type": "gpt2",
            "vocab_size": 256,
            "n_positions": 128,
            "n_embd": 128,
            "n_layer": 6,
            "n_head": 4,
        },
        name="tiny",
    )
    fast, slow = (times(name, Precision.FP32, tiny, sequence_length=128) for name in ("CPU-fast", "CPU-slow"))
    np.testing.assert_allclose(slow.forward_s, 2 * fast.forward_s, rtol=1e-3)
    np.testing.assert_allclose(slow.backward_s, 2 * fast.backward_s, rtol=1e-3)
    np.testing.assert_allclose(slow.update_s, fast.update_s)


def test_a_shipped_profile_has_every_field_and_a_known_accelerator() -> None:
    for path in FOLDER.glob("*.json"):
        raw = json.loads(path.read_text())
        assert set(raw) == {
            "schema",
            "accelerator",
            "stack",
            "dtype",
            "fitted_on",
            "coefficients",
            "error_p50",
            "error_p90",
            "as_of",
            "source",
        }
        assert CATALOG.accelerator(raw["accelerator"])
        assert REPEAT_P50 <= raw["error_p50"] <= raw["error_p90"] < 1
        assert raw["error_p90"] >= REPEAT_P90
        assert len(raw["source"]) > 20


def test_larger_microbatches_and_fewer_devices_take_longer() -> None:
    for precision, accelerator in (
        (Precision.TF32, "A100-40"),
        (Precision.FP16, "A100-40"),
        (Precision.FP32, "V100-16"),
    ):
        base = times(accelerator, precision, tp=2).forward_s[1]
        assert times(accelerator, precision, tp=2, microbatch_size=8).forward_s[1] > base
        assert times(accelerator, precision, tp=1).forward_s[1] > base


def test_a_measured_layer_is_taken_before_the_fit(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "V100-16.fp32.json", tmp_path / "V100-16.json")
    rows = [
        MeasuredLayer(
            model="sailor-opt-350",
            layer_kind=kind,
            microbatch_size=2,
            sequence_length=2048,
            tp=1,
            forward_s=1.25,
            backward_s=2.5,
            update_s=0.1,
            activation_bytes=None,
        )
        for kind in LayerKind
    ]
    write_measured(tmp_path / "V100-16.csv", rows)
    assert sorted(read_measured(tmp_path / "V100-16.csv"), key=lambda row: row.key) == sorted(
        rows, key=lambda row: row.key
    )
    mine = profiles.load(profiles=tmp_path)
    part = CATALOG.accelerator("V100-16")
    settings = {"sequence_length": 2048, "tp": 1, "precision": Precision.FP32}
    found = mine.layer_times(part, OPT, microbatch_size=2, **settings)
    assert (found.forward_s == 1.25).all()
    assert found.error == pytest.approx(np.log1p(0.05))
    assert found.measured
    elsewhere = mine.layer_times(part, OPT, microbatch_size=4, **settings)
    np.testing.assert_allclose(elsewhere.forward_s, times("V100-16", Precision.FP32, microbatch_size=4).forward_s)


def test_a_folder_of_profiles_leaves_the_other_shipped_ones_and_the_stacks_in_place(tmp_path: Path) -> None:
    mine = profiles.load(profiles=tmp_path)
    assert mine.names() == SHIPPED.names()
    assert mine.stack("A100-40") == SHIPPED.stack("default")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not a compute profile"),
        ('{"schema": 7}', "schema is 7, this version reads 1"),
        ('{"schema": 1}', "is not a compute profile"),
    ],
)
def test_a_broken_profile_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=message):
        profiles.load(profiles=tmp_path)


def test_an_unknown_feature_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    raw = json.loads((FOLDER / "V100-16.fp32.json").read_text())
    raw["coefficients"]["block"]["forward"] = {"moonlight": 1.0}
    (tmp_path / "x.json").write_text(json.dumps(raw))
    with pytest.raises(DataError, match="unknown features moonlight; known: overhead"):
        profiles.load(profiles=tmp_path)


def test_a_bad_row_of_measured_layers_is_named_with_its_line(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "V100-16.fp32.json", tmp_path / "x.json")
    header = "model,layer_kind,microbatch_size,sequence_length,tp,forward_s,backward_s,update_s,activation_bytes\n"
    (tmp_path / "x.csv").write_text(header + "m,block,one,128,1,1,1,1,\n")
    with pytest.raises(DataError, match=r"x\.csv line 2: .*'one'"):
        profiles.load(profiles=tmp_path)


def sample_of(features: np.ndarray, seconds: float, *, model: str, size: int = 1, tp: int = 1) -> Sample:
    return Sample(
        kind=LayerKind.BLOCK,
        model=model,
        microbatch_size=size,
        sequence_length=1024,
        tp=tp,
        features=features,
        parameters=1_000_000 * size,
        forward_s=seconds,
        backward_s=2 * seconds,
        update_s=1e-4 + 1e-10 * 1_000_000 * size,
    )


def samples_of(coefficients: np.ndarray, *, models: int = 3) -> list[Sample]:
    random = np.random.default_rng(3)
    found = []
    for number in range(12):
        features = random.uniform(0.1, 1.0, 9) * np.array([1, 1e12, 1e9, 1e8, 1e8, 0, 0, 0, 0])
        model, size = f"model {number % models}", number + 1
        found.append(sample_of(features, float(features @ coefficients), model=model, size=size))
    return found


TRUTH = np.array([1e-4, 1e-14, 2e-12, 0, 3e-11, 0, 0, 0, 0])


def test_a_fit_finds_the_coefficients_behind_exact_times() -> None:
    found = fit(samples_of(TRUTH))
    np.testing.assert_allclose(found.forward[LayerKind.BLOCK], TRUTH, rtol=1e-6, atol=1e-18)
    np.testing.assert_allclose(found.update, [1e-4, 1e-10], rtol=1e-6)


def test_no_fit_claims_to_be_surer_than_a_run_repeats() -> None:
    found = fit(samples_of(TRUTH))
    assert (found.error_p50, found.error_p90) == (REPEAT_P50, REPEAT_P90)


def test_the_claimed_error_is_that_of_models_left_out_not_of_configurations() -> None:
    """Each model repeats one law exactly, but every model has its own: another shape of a model is easy to predict."""
    usual = samples_of(TRUTH)
    own = []
    for number, sample in enumerate(usual):
        factor = 1.0 + 0.2 * (number % 3)
        own.append(sample_of(sample.features, sample.forward_s * factor, model=sample.model, size=number + 1))
    found = fit(own)
    by_model = held_out_errors(own, [lambda sample: sample.model])
    assert found.error_p50 == pytest.approx(np.quantile(by_model, 0.5))
    assert found.error_p90 == pytest.approx(np.quantile(by_model, 0.9))
    assert found.error_p90 > np.quantile(held_out_errors(own, [lambda sample: sample.configuration]), 0.9)


def test_with_one_model_microbatch_sizes_and_degrees_are_held_out() -> None:
    several, alone = samples_of(TRUTH), samples_of(TRUTH, models=1)
    assert [family(several[4]) for family in families(several)] == ["model 1"]
    assert [family(alone[4]) for family in families(alone)] == [5, 1]


def test_held_out_errors_show_a_configuration_that_the_others_do_not_explain() -> None:
    usual = samples_of(TRUTH)
    odd = sample_of(usual[0].features, 2 * usual[0].forward_s, model="odd")
    assert held_out_errors([*usual, odd], [lambda sample: sample.configuration]).max() == pytest.approx(0.5, abs=0.01)


def test_a_guess_decides_only_what_was_not_measured() -> None:
    """All samples are at tp 1: nothing tells what an all-reduce costs, and everything else is told exactly."""
    known = np.array([1e-4, 1e-14, 2e-12, 0, 3e-11, 0, 7e-12, 8e-12, 9e-12])
    guess = Guess(seconds_per_flop=0.0, coefficients={LayerKind.BLOCK: (known, 2 * known)})
    found = fit(samples_of(TRUTH), guess=guess)
    np.testing.assert_allclose(found.forward[LayerKind.BLOCK], known, rtol=1e-6, atol=1e-18)
    off = Guess(seconds_per_flop=0.0, coefficients={LayerKind.BLOCK: (1.3 * known, 2.6 * known)})
    found = fit(samples_of(TRUTH), guess=off)
    np.testing.assert_allclose(found.forward[LayerKind.BLOCK][6:], 1.3 * known[6:], rtol=1e-6)
    predicted = np.array([sample.features @ found.forward[LayerKind.BLOCK] for sample in samples_of(TRUTH)])
    np.testing.assert_allclose(predicted, [sample.forward_s for sample in samples_of(TRUTH)], rtol=0.02)


@pytest.mark.parametrize("accelerator", COVERED)
def test_the_guess_equals_the_roofline(accelerator: str) -> None:
    part = CATALOG.accelerator(accelerator)
    for precision in Precision:
        if part.peak_tflops(precision) is None:
            continue
        guess = feature_guess(part, precision)
        for tp, size in ((1, 4), (2, 8), (8, 32)):
            shape = {"sequence_length": 2048, "microbatch_size": size, "tp": tp, "precision": precision}
            rows, roof = layer_features(OPT, **shape), roofline_times(part, OPT, **shape)
            for direction, seconds in enumerate((roof.forward_s, roof.backward_s)):
                told = [float(rows[kind] @ guess.coefficients[kind][direction]) for kind in ("block", "head")]
                # The roofline reads a layer's weights as well, 10 % of a head at tp 1.
                assert told[0] == pytest.approx(seconds[1], rel=0.03)
                assert told[1] == pytest.approx(seconds[-1], rel=0.11)


GPUS = [entry for entry in SHIPPED.entries if entry.accelerator in COVERED]


@pytest.mark.parametrize("entry", GPUS, ids=lambda entry: entry.ref.id)
def test_a_degree_that_nobody_timed_is_no_free_all_reduce(entry: ComputeProfile) -> None:
    for direction in ("forward", "backward"):
        for degree in REDUCED_DEGREES:
            column = FEATURES.index(f"all_reduce_bytes_tp{degree}")
            assert entry.coefficients[LayerKind.BLOCK][direction][column] > 0, (direction, degree)


def test_nothing_measured_can_not_be_fitted() -> None:
    with pytest.raises(ValueError, match="no measured layers"):
        fit([])


@pytest.mark.parametrize("preset", ["gpt2", "sailor-opt-350", "gpt2-xl", "opt-6.7b"])
def test_a_fit_on_wide_models_is_not_far_from_the_datasheet_on_narrow_ones(preset: str) -> None:
    part = CATALOG.accelerator("A100-40")
    model = decoder(ModelSource(preset=preset))
    unprofiled = ComputeProfiles(
        entries=(),
        stacks=SHIPPED.stacks,
        local=SHIPPED.local,
        generations=SHIPPED.generations,
        errors=SHIPPED.errors,
    )
    fitted, datasheet = (
        found.layer_times(part, model, sequence_length=1024, microbatch_size=4, tp=1, precision=Precision.FP32)
        for found in (SHIPPED, unprofiled)
    )
    ratio = (fitted.forward_s + fitted.backward_s)[1] / (datasheet.forward_s + datasheet.backward_s)[1]
    assert 1 / 1.46 < ratio < 1.46
