"""The artifact's formulas as the planner's benchmark states them, on a small made-up artifact."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from factories.sailor_artifact import BLOCKS, HIDDEN, LAYERS, TOKENS, block_seconds, write_artifact

FOLDER = Path(__file__).parents[2] / "benchmarks" / "planner"
ZONES = ("us-central1-a", "us-central1-b")


@pytest.fixture(scope="module", autouse=True)
def benchmark_on_the_path():
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    from sailor_formulas import Artifact

    folder = write_artifact(tmp_path_factory.mktemp("artifact"), gpus={"A100-40": 4.0, "V100-16": 1.0})
    found = Artifact(folder, "OPT-350", 64)
    for layers in found.sizes.values():
        for layer in layers.values():
            layer["act_output_floats"] = HIDDEN * TOKENS
    return found


def one_kind(gpu, tp, zones, cuts, size):
    from sailor_formulas import Place
    from sailor_places import as_plan

    return as_plan(size, cuts, [[Place(gpu, zone, tp) for zone in zones] for _ in cuts[1:]])


def test_one_stage_takes_its_microbatches_and_its_sum(artifact):
    plan = one_kind("A100-40", 1, (ZONES[0],) * 2, (0, LAYERS), 2)
    score = artifact.score(plan)
    times = artifact.layer_times("A100-40", 2, 1)
    place = plan["pipeline_list"][0]["tmp_per_stage"][0][0]
    assert place == [[["A100-40", 4, ZONES[0]]], 1]
    compute = times[:, :2].sum()
    assert compute > BLOCKS * sum(block_seconds(2, 1, 4.0)) * (1 - 1e-9)
    nbytes = artifact.stage_bytes(0, LAYERS, 1)
    assert nbytes > 5e8
    x = math.log2(5e8 / 2 / 1e6)
    rate = (-0.01 * x * x + 0.3 * x + 2.0) * 1e9
    assert score.iteration_s > 16 * compute + times[0, 2] + 2 * (5e8 / 2) / rate
    assert score.egress_usd == 0.0
    assert score.devices == {("A100-40", ZONES[0]): 2}


def test_the_slowest_hop_counts_in_time_and_every_hop_in_money(artifact):
    near = artifact.score(one_kind("A100-40", 1, (ZONES[0],) * 4, (0, LAYERS), 1))
    spread = artifact.score(one_kind("A100-40", 1, (ZONES[0], ZONES[0], ZONES[1], ZONES[1]), (0, LAYERS), 1))
    price = artifact.egress_usd_per_byte(*ZONES)
    nbytes = artifact.stage_bytes(0, LAYERS, 1)
    assert spread.iteration_s == pytest.approx(near.iteration_s)
    assert spread.egress_usd == pytest.approx(2 * price * nbytes * 2 * 3 / 4)


def test_a_cut_costs_an_activation_and_twice_the_last_stages_gradient(artifact):
    from sailor_formulas import Place

    cut = 10
    score = artifact.score(one_kind("A100-40", 2, (ZONES[0],), (0, cut, LAYERS), 1))
    place = Place("A100-40", ZONES[0], 2)
    sent = float(artifact.transfer_s(HIDDEN * TOKENS * 4.0, place, place))
    times = artifact.layer_times("A100-40", 1, 2)[:, :2].sum(axis=1)
    first, last = times[:cut].sum() + sent, times[cut:].sum() + 2 * sent
    update = artifact.layer_times("A100-40", 1, 2)[0, 2]
    assert score.iteration_s == pytest.approx(63 * max(first, last) + first + last + update)


def test_a_stage_that_does_not_fit_is_a_problem(artifact):
    score = artifact.score(one_kind("V100-16", 1, (ZONES[0],), (0, LAYERS), 4))
    used = artifact.stage_memory_bytes(1, 0, LAYERS, 4, 1)
    assert (used > artifact.memory_bytes("V100-16")) == bool(score.problems)
