"""What finished runs teach about plans to come."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from factories.scenarios import chain, gcp_scenario, make_plan, offer_in
from sailor_cloud.errors import RequestError
from sailor_cloud.simulator import evaluate
from sailor_cloud.workload import own_measurements
from sailor_cloud.workload.own_measurements import MeasuredRun, OwnMeasurements, this_version

RUN = MeasuredRun(
    commit=this_version(),
    file="runs/first-g1.json",
    model="OPT-350",
    nodes_per_stage_by_gpu="1xV100-16",
    n_nodes=1,
    n_gpus=4,
    pp=1,
    dp=1,
    tp=4,
    mbs=2,
    gbs=64,
    iteration_time_s=1.2,
    reduce_grads_s="",
    max_mem_bytes="9000000000",
    layers_per_stage="26",
    accelerator="V100-16",
    precision="fp32",
    decoder="sailor-opt-350",
    sequence_length=2048,
    src_zone="",
    dst_zone="",
    predicted_s=1.0,
    predicted_bytes=8_000_000_000,
    layers_error=0.06,
    network_error=0.0,
    chance_error=0.03,
    memory_accelerator="V100-16",
    memory_error=0.08,
    memory_chance_error=0.024,
)


def taught(*runs: MeasuredRun) -> OwnMeasurements:
    return OwnMeasurements(runs=runs)


def test_one_run_moves_the_layers_as_far_as_it_is_surer_than_they_were() -> None:
    belief = taught(RUN).layers("V100-16", "fp32", "sailor-opt-350")
    weight = 0.06**2 / (0.06**2 + 0.03**2)
    assert 0.06 * belief.mean == pytest.approx(weight * math.log(1.2))
    assert belief.left == pytest.approx(math.sqrt(1.0 - weight))
    assert belief.runs == 1


def test_more_runs_bring_the_prediction_to_what_was_measured_and_leave_less_unknown() -> None:
    lefts, factors = [], []
    for count in (0, 1, 4, 30):
        belief = taught(*[RUN] * count).layers("V100-16", "fp32", "sailor-opt-350")
        lefts.append(belief.left)
        factors.append(math.exp(0.06 * belief.mean))
    assert lefts == sorted(lefts, reverse=True)
    assert lefts[0] == 1.0
    assert lefts[-1] < 0.15
    assert factors == sorted(factors)
    assert factors[-1] == pytest.approx(1.2, rel=0.01)


def test_other_models_learn_half_other_accelerators_and_precisions_nothing() -> None:
    own = taught(*[RUN] * 30)
    same, other = own.layers("V100-16", "fp32", "sailor-opt-350"), own.layers("V100-16", "fp32", "gpt2")
    assert other.mean == pytest.approx(0.5 * same.mean, rel=1e-6)
    assert same.left < other.left < 1.0
    for nothing in (own.layers("A100-40", "fp32", "sailor-opt-350"), own.layers("V100-16", "fp16", "sailor-opt-350")):
        assert (nothing.mean, nothing.left, nothing.runs) == (0.0, 1.0, 0)


def test_a_run_that_waits_for_its_network_informs_about_the_link_and_little_about_layers() -> None:
    waited = dataclasses.replace(RUN, src_zone="a", dst_zone="b", layers_error=0.01, network_error=0.3)
    own = taught(waited)
    assert 0.3 * own.network("b", "a").mean == pytest.approx(math.log(1.2), rel=0.02)
    assert own.network("a", "b").left < 0.15
    assert own.layers("V100-16", "fp32", "sailor-opt-350").left > 0.99
    assert own.network("a", "a").runs == 0


def test_a_run_that_was_wildly_off_counts_as_one_that_was_far_off() -> None:
    beliefs = [
        taught(dataclasses.replace(RUN, iteration_time_s=seconds)).layers("V100-16", "fp32", "sailor-opt-350")
        for seconds in (100.0, 10_000.0)
    ]
    assert beliefs[0] == beliefs[1]
    assert math.exp(0.06 * beliefs[0].mean) < 1.5


def test_errors_of_many_runs_are_found_again() -> None:
    """Runs with layers 10 % and a link 40 % slower than predicted, in other shares, tell both."""
    dice = np.random.default_rng(1)
    runs = []
    for number in range(60):
        share = float(dice.uniform(0.1, 0.9))
        seconds = math.exp(share * 0.10 + (1 - share) * 0.40 + 0.02 * float(dice.standard_normal()))
        runs.append(
            dataclasses.replace(
                RUN,
                file=f"runs/{number}-g1.json",
                src_zone="a",
                dst_zone="b",
                iteration_time_s=seconds,
                layers_error=0.06 * share,
                network_error=0.3 * (1 - share),
                chance_error=0.02,
            )
        )
    own = taught(*runs)
    assert 0.06 * own.layers("V100-16", "fp32", "sailor-opt-350").mean == pytest.approx(0.10, abs=0.02)
    assert 0.3 * own.network("a", "b").mean == pytest.approx(0.40, abs=0.03)


def test_a_measured_plan_is_predicted_as_it_ran_with_a_narrower_range() -> None:
    scenario = gcp_scenario(batch=64, precision="fp32")
    offer = offer_in(scenario, "us-central1-a", "V100-16", devices=4)
    plan = make_plan(scenario, [chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)])
    before = evaluate(plan, scenario)
    seconds = before.prediction.iteration_s_replay
    run = dataclasses.replace(
        RUN,
        iteration_time_s=1.15 * seconds,
        predicted_s=seconds,
        decoder=scenario.decoder.name,
        layers_error=before.uncertainty.half(own_kind("layers")),
        network_error=0.0,
    )
    learned = dataclasses.replace(scenario, profiles=dataclasses.replace(scenario.profiles, own=taught(*[run] * 8)))
    after = evaluate(plan, learned)
    assert after.prediction.iteration_s_replay == pytest.approx(1.15 * seconds, rel=0.02)
    assert after.prediction.error_p50 < 0.8 * before.prediction.error_p50
    correction = after.corrections[0]
    assert (correction.what, correction.runs) == ("layers on V100-16 in fp32", 8)
    assert correction.factor == pytest.approx(1.15, rel=0.03)
    assert before.corrections == ()


def test_peak_memory_that_was_measured_narrows_the_memory_of_the_next_plan() -> None:
    scenario = gcp_scenario(batch=64, precision="fp32")
    offer = offer_in(scenario, "us-central1-a", "V100-16", devices=4)
    plan = make_plan(scenario, [chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)])
    (before,) = evaluate(plan, scenario).prediction.memory
    run = dataclasses.replace(
        RUN,
        iteration_time_s=1.0,
        decoder=scenario.decoder.name,
        max_mem_bytes=str(round(1.1 * before.tensor_bytes)),
        predicted_bytes=before.tensor_bytes,
    )

    def learned(*runs: MeasuredRun):
        profiles = dataclasses.replace(scenario.profiles, own=taught(*runs))
        return evaluate(plan, dataclasses.replace(scenario, profiles=profiles))

    found = learned(*[run] * 8)
    (after,) = found.prediction.memory
    assert (before.measured, after.measured) == (False, True)
    assert after.tensor_bytes == pytest.approx(1.1 * before.tensor_bytes, rel=0.01)
    assert after.total_bytes - after.tensor_bytes > before.total_bytes - before.tensor_bytes
    correction = next(each for each in found.corrections if each.unit == "bytes")
    assert (correction.what, correction.runs) == ("stages on V100-16 in fp32", 8)
    assert correction.factor == pytest.approx(1.1, rel=0.01)
    # A local rank counts its whole process, and another accelerator's stages say nothing of these.
    for other in ("", "A100-40"):
        (same,) = learned(dataclasses.replace(run, memory_accelerator=other)).prediction.memory
        assert same == before


def own_kind(name: str):
    from sailor_cloud.simulator.timing.uncertainty import Kind

    return Kind(name)


def test_a_table_is_read_as_it_was_written_and_rows_of_other_versions_are_left_out(tmp_path: Path) -> None:
    table = tmp_path / "measured_iterations.csv"
    table.write_text(own_measurements.text([RUN, dataclasses.replace(RUN, commit="0.0.1")]))
    assert own_measurements.read(table) == (RUN,)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.2,", "-1.2,"),
        ("runs/first-g1.json", "x,y"),
        ("iteration_time_s", "seconds"),
        ("0.06", "nan"),
        ("9000000000", "0"),
        (own_measurements.text([RUN]), "\udcff\udcfe"),
    ],
)
def test_a_damaged_table_says_what_to_do(tmp_path: Path, old: str, new: str) -> None:
    table = tmp_path / "measured_iterations.csv"
    table.write_text(own_measurements.text([RUN]).replace(old, new), errors="surrogateescape")
    with pytest.raises(RequestError, match="write it again, or move it away") as refused:
        own_measurements.read(table)
    assert "Error(" not in str(refused.value)


def test_thousands_of_runs_give_the_same_result_as_the_full_regression() -> None:
    kinds = [("V100-16", "m0"), ("V100-16", "m1"), ("A100-40", "m0")]
    runs = []
    for number in range(2000):
        accelerator, model = kinds[number % 3]
        zones = {"src_zone": "a", "dst_zone": "b", "network_error": 0.05} if number % 2 else {}
        seconds = 1.0 + 0.1 * (number % 7)
        runs.append(dataclasses.replace(RUN, accelerator=accelerator, decoder=model, iteration_time_s=seconds, **zones))
    few = runs[:12]
    errors = [{each.layers: each.layers_error, each.network: each.network_error} for each in few]
    alike = lambda a, b: 1.0 if a == b else 0.5 if len(a) == len(b) == 3 and a[:2] == b[:2] else 0.0  # noqa: E731
    of = lambda one, two: sum(alike(a, b) * x * y for a, x in one.items() for b, y in two.items())  # noqa: E731
    between = np.array([[of(one, two) for two in errors] for one in errors]) + np.diag([0.03**2] * 12)
    to_runs = np.array([of({RUN.layers: 1.0}, each) for each in errors])
    off = np.array([each.time.clipped for each in few])
    belief = taught(*few).layers(*RUN.layers)
    assert belief.mean == pytest.approx(float(to_runs @ np.linalg.solve(between, off)))
    assert belief.left == pytest.approx(math.sqrt(1.0 - float(to_runs @ np.linalg.solve(between, to_runs))))
    assert taught(*runs).layers("A100-40", "fp32", "m0").left < 0.3
