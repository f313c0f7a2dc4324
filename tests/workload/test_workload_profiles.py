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
from sailor_cloud.workload.features import LayerKind
from sailor_cloud.workload.fit import Sample, fit, held_out_errors
from sailor_cloud.workload.measured import MeasuredLayer, read_measured, write_measured

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
        assert 0 < found.error_p50 <= found.error_p90 < 1


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
        assert 0 < raw["error_p50"] <= raw["error_p90"] < 1
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
    assert found.error_p50 == pytest.approx(0.05)
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


def test_a_feature_that_nobody_knows_is_refused_with_the_known_ones(tmp_path: Path) -> None:
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


def samples_of(coefficients: np.ndarray) -> list[Sample]:
    random = np.random.default_rng(3)
    found = []
    for group in range(12):
        features = random.uniform(0.1, 1.0, 9) * np.array([1, 1e12, 1e9, 1e8, 1e8, 0, 0, 0, 0])
        found.append(
            Sample(
                kind=LayerKind.BLOCK,
                group=str(group),
                features=features,
                parameters=1_000_000 * (group + 1),
                forward_s=float(features @ coefficients),
                backward_s=float(2 * features @ coefficients),
                update_s=1e-4 + 1e-10 * 1_000_000 * (group + 1),
            )
        )
    return found


def test_a_fit_finds_the_coefficients_behind_exact_times() -> None:
    truth = np.array([1e-4, 1e-14, 2e-12, 0, 3e-11, 0, 0, 0, 0])
    found = fit(samples_of(truth))
    np.testing.assert_allclose(found.forward[LayerKind.BLOCK], truth, rtol=1e-6, atol=1e-18)
    np.testing.assert_allclose(found.update, [1e-4, 1e-10], rtol=1e-6)
    assert found.error_p90 < 1e-6


def test_held_out_errors_show_a_configuration_that_the_others_do_not_explain() -> None:
    truth = np.array([1e-4, 1e-14, 2e-12, 0, 3e-11, 0, 0, 0, 0])
    usual = samples_of(truth)
    odd = Sample(
        kind=LayerKind.BLOCK,
        group="odd",
        features=usual[0].features,
        parameters=1,
        forward_s=2 * usual[0].forward_s,
        backward_s=2 * usual[0].backward_s,
        update_s=0.0,
    )
    assert held_out_errors([*usual, odd]).max() == pytest.approx(0.5, abs=0.01)


def test_nothing_measured_can_not_be_fitted() -> None:
    with pytest.raises(ValueError, match="no measured layers"):
        fit([])


@pytest.mark.parametrize("preset", ["gpt2", "sailor-opt-350", "gpt2-xl", "opt-6.7b"])
def test_a_fit_on_wide_models_is_not_far_from_the_datasheet_on_narrow_ones(preset: str) -> None:
    part = CATALOG.accelerator("A100-40")
    model = decoder(ModelSource(preset=preset))
    unprofiled = ComputeProfiles(entries=(), stacks=SHIPPED.stacks)
    fitted, datasheet = (
        found.layer_times(part, model, sequence_length=1024, microbatch_size=4, tp=1, precision=Precision.FP32)
        for found in (SHIPPED, unprofiled)
    )
    ratio = (fitted.forward_s + fitted.backward_s)[1] / (datasheet.forward_s + datasheet.backward_s)[1]
    assert 1 / 1.46 < ratio < 1.46
