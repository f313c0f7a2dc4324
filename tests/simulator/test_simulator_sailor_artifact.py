"""The engine that judges plans by the formulas of Sailor's artifact, computed by hand on a small import."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from factories.sailor_artifact import BLOCKS, HIDDEN, LAYERS, TOKENS, VOCABULARY, ZONES, block_seconds, write_artifact
from sailor_cloud import catalog, network
from sailor_cloud.errors import ProfileMissingError, RequestError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator import Scenario, engine_named, stage_table
from sailor_cloud.simulator.engine import uniform_pipelines
from sailor_cloud.simulator.engines import Formulas, IterationParts, StagePlace, UniformPipelines
from sailor_cloud.workload import decoder, profiles

JOB = """
name: artifact
model: {preset: sailor-opt-350}
training: {global_batch_size: 64, sequence_length: 2048, precision: fp32}
resources: [{provider: gcp, zones: [us-central1-a], accelerators: {A100-40: 4}}]
"""
SENT = HIDDEN * TOKENS * 4.0
PARAMETERS = 2 * VOCABULARY * HIDDEN + BLOCKS * 12 * HIDDEN * HIDDEN


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_artifact(tmp_path_factory.mktemp("artifact") / "data", gpus={"A100-40": 4.0, "V100-16": 1.0})
    out = tmp_path_factory.mktemp("imported") / "out"
    return import_artifact(source, out, precision=Precision.FP32, as_of=date(2026, 1, 2)).folder


@pytest.fixture(scope="module")
def scenario(imported: Path) -> Scenario:
    folder = imported / "compute_profiles"
    return Scenario(
        job=parse_job(JOB),
        decoder=decoder(ModelSource(preset="sailor-opt-350")),
        offers={},
        catalog=catalog.load(),
        network=network.load(),
        profiles=profiles.load(),
        as_of=datetime(2026, 1, 2, tzinfo=UTC),
        engine=engine_named("sailor-artifact", profiles=folder),
    )


def formulas(scenario: Scenario) -> Formulas:
    assert scenario.engine.formulas is not None
    return scenario.engine.formulas


def iteration(
    scenario: Scenario, zones: tuple[str, ...], cut: tuple[int, ...], *, tp: int, size: int
) -> IterationParts:
    """Return what A100 pipelines take, one in each zone, that share a batch of 64."""
    rows = [tuple(StagePlace("A100-40", zone, tp) for _ in cut[1:]) for zone in zones]
    count = -(-64 // (size * len(zones)))
    pipelines = UniformPipelines(rows=rows, cut=cut, microbatch_size=size, microbatches=count)
    return formulas(scenario).iteration(pipelines, scenario)


def curve_s(nbytes: float) -> float:
    x = math.log2(nbytes / 1e6)
    return nbytes / 1e9 / (-0.01 * x * x + 0.3 * x + 2.0)


def layers_s(first: int, end: int, *, tp: int, size: int) -> float:
    forward, backward = block_seconds(size, tp, 4.0)
    each = [5e-4 + 1e-6, *[forward + backward] * BLOCKS, 3 * (forward + backward)]
    return sum(each[first:end])


def test_one_stage_takes_its_microbatches_its_update_and_its_all_reduce_in_buckets(scenario: Scenario) -> None:
    found = iteration(scenario, (ZONES[0],) * 2, (0, LAYERS), tp=1, size=2)
    whole, rest = divmod(PARAMETERS * 4.0, 5e8)
    reduced = 2 * (whole * curve_s(5e8 / 2) + curve_s(rest / 2))
    assert found.seconds == pytest.approx(16 * layers_s(0, LAYERS, tp=1, size=2) + 2e-3 + reduced)
    assert found.traffic == {}


def test_a_cut_takes_an_activation_and_twice_the_last_stages_gradient(scenario: Scenario) -> None:
    found = iteration(scenario, (ZONES[0],), (0, 10, LAYERS), tp=2, size=1)
    first = layers_s(0, 10, tp=2, size=1) + curve_s(SENT)
    last = layers_s(10, LAYERS, tp=2, size=1) + 2 * curve_s(SENT)
    assert found.seconds == pytest.approx(63 * max(first, last) + first + last + 1e-3)


def test_with_more_than_three_stages_the_first_activation_counts_twice(scenario: Scenario) -> None:
    cut = (0, 7, 13, 19, LAYERS)
    found = iteration(scenario, (ZONES[0],), cut, tp=1, size=1)
    assert [stage.transfer_s for stage in found.stages] == pytest.approx([2 * curve_s(SENT)] * 4)


def test_every_hop_of_a_ring_counts_in_money_and_the_slowest_in_time(scenario: Scenario) -> None:
    near = iteration(scenario, (ZONES[0],) * 4, (0, LAYERS), tp=1, size=1)
    spread = iteration(scenario, (ZONES[0], ZONES[0], ZONES[1], ZONES[1]), (0, LAYERS), tp=1, size=1)
    assert spread.seconds == pytest.approx(near.seconds)
    each = PARAMETERS * 4.0 * 2 * 3 / 4
    assert spread.traffic == pytest.approx({(ZONES[0], ZONES[1]): each, (ZONES[1], ZONES[0]): each})


def test_memory_is_24_bytes_a_parameter_activations_of_all_stages_behind_and_a_constant(scenario: Scenario) -> None:
    table = stage_table(scenario, "V100-16", tp=2, microbatch_size=2)
    found = table.memory_bytes(1, 5, in_flight=3)
    assert found == pytest.approx(4 * (6 * HIDDEN * HIDDEN * 24 + 3 * 20_000_000 * 4 * 2) + 5.06e9)
    assert table.limit_bytes == 2**34


def test_nothing_fits_on_a_stage_that_the_artifact_did_not_profile(scenario: Scenario) -> None:
    assert stage_table(scenario, "A100-40", tp=2, microbatch_size=8).limit_bytes == 0
    assert stage_table(scenario, "A100-40", tp=2, microbatch_size=4, recompute=Recompute.FULL).limit_bytes == 0
    with pytest.raises(ProfileMissingError, match="the artifact has no profile of sailor-opt-350 on H100-80"):
        stage_table(scenario, "H100-80", tp=1, microbatch_size=1)
    unknown = UniformPipelines(
        rows=[(StagePlace("A100-40", ZONES[0], 4),)], cut=(0, LAYERS), microbatch_size=8, microbatches=8
    )
    assert formulas(scenario).problem(unknown, scenario) == (
        "the artifact did not profile A100-40 at tp 4 with microbatches of 8; there it has 1, 2, 4"
    )


def test_pipelines_that_differ_are_said_to() -> None:
    place = [StagePlace("A100-40", ZONES[0], 1)]
    alike = (place, (0, LAYERS), 2, 4)
    assert uniform_pipelines([alike, (place, (0, LAYERS), 4, 4)]) == "its pipelines have microbatches of 2, 4"
    assert uniform_pipelines([alike, (place * 2, (0, 9, LAYERS), 2, 4)]) == "its pipelines are cut differently"
    assert uniform_pipelines([alike, (place, (0, LAYERS), 2, 6)]) == "its pipelines run 4 to 6 microbatches"


def test_without_an_import_the_engine_says_how_to_make_one() -> None:
    with pytest.raises(RequestError, match="run 'sailor-cloud import sailor-artifact DIR -o OUT' and give --profiles"):
        engine_named("sailor-artifact")
