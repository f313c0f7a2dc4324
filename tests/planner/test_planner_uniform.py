"""Plans for engines whose pipelines are all alike."""

from __future__ import annotations

import dataclasses
from datetime import date
from itertools import combinations, product
from pathlib import Path

import pytest

from factories.sailor_artifact import LAYERS, write_artifact
from factories.scenarios import make_scenario
from sailor_cloud import api, interchange
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.simulator import engine_named
from sailor_cloud.simulator.engines import StagePlace, UniformPipelines

JOB = """
name: alike
model: {{preset: sailor-opt-350}}
training: {{global_batch_size: {batch}, sequence_length: 2048, precision: fp32}}
goal: {goal}
constraints: {{{limits}}}
resources:
  - {{provider: gcp, zones: [{zones}], markets: [on-demand], accelerators: {{{devices}}}}}
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_artifact(tmp_path_factory.mktemp("artifact") / "data", gpus={"A100-40": 4.0, "V100-16": 1.0})
    out = tmp_path_factory.mktemp("imported") / "out"
    return import_artifact(source, out, precision=Precision.FP32, as_of=date(2026, 1, 2)).folder


def planned(
    imported: Path,
    *,
    devices: str,
    batch: int = 4,
    zones: str = "us-central1-a",
    goal: str = "maximize-throughput",
    limits: str = "",
) -> PlanDocument:
    return api.plan(
        parse_job(JOB.format(batch=batch, goal=goal, limits=limits, zones=zones, devices=devices)),
        engine="sailor-artifact",
        profiles=imported / "compute_profiles",
        network=imported / "bandwidth_profiles",
        pricing=imported / "pricing",
    )


def brute_force_s(imported: Path, batch: int) -> float:
    """Return the shortest iteration of any uniform pipelines on four A100 in one zone, memory no matter."""
    engine = engine_named("sailor-artifact", profiles=imported / "compute_profiles")
    job = JOB.format(batch=batch, goal="maximize-throughput", limits="", zones="us-central1-a", devices="A100-40: 4")
    scenario = make_scenario(parse_job(job), engine=engine)
    assert engine.formulas is not None
    return min(
        engine.formulas.iteration(
            UniformPipelines(
                rows=[tuple(StagePlace("A100-40", "us-central1-a", tp) for tp in degrees)] * replicas,
                cut=(0, *cut, LAYERS),
                microbatch_size=size,
                microbatches=-(-batch // (size * replicas)),
            ),
            scenario,
        ).seconds
        for size in (1, 2, 4)
        if batch % size == 0
        for replicas in range(1, batch // size + 1)
        for stages in (1, 2)
        for degrees in product((1, 2, 4), repeat=stages)
        if sum(degrees) * replicas <= 4
        for cut in combinations(range(1, LAYERS), stages - 1)
    )


def test_the_plan_is_the_best_of_all_and_names_its_engine(imported: Path) -> None:
    document = planned(imported, devices="A100-40: 4")
    assert document.engine == "sailor-artifact"
    assert document.status is Status.FEASIBLE
    assert document.prediction is not None
    assert document.prediction.iteration_s_replay <= brute_force_s(imported, 4) * 1.0002


def test_only_whole_pipelines_alike_and_profiled_sizes_come_out(imported: Path) -> None:
    document = planned(imported, devices="A100-40: 4, V100-16: 4", batch=8, zones="us-central1-a, us-central1-b")
    assert document.plan is not None
    assert document.prediction is not None
    pipelines = document.plan.pipelines
    assert len({(p.microbatch_size, tuple(stage.layers for stage in p.stages)) for p in pipelines}) == 1
    assert pipelines[0].microbatch_size in (1, 2, 4)
    assert all(memory.total_bytes <= memory.limit_bytes for memory in document.prediction.memory)
    exported = interchange.export_plan(document.plan, document.inputs.hardware_by_id())
    assert exported["pipeline_list"][0]["dp"][0] == len(pipelines)


def test_a_limit_on_money_is_kept_and_a_limit_on_time_makes_plans_cheap(imported: Path) -> None:
    free = planned(imported, devices="A100-40: 4, V100-16: 4", batch=8)
    assert free.cost is not None
    assert free.prediction is not None
    usd = 0.8 * free.cost.usd_per_iteration
    cheap = planned(imported, devices="A100-40: 4, V100-16: 4", batch=8, limits=f"max_usd_per_iteration: {usd}")
    assert cheap.cost is None or cheap.cost.usd_per_iteration <= usd
    rate = 0.5 / free.prediction.iteration_s_replay
    least = planned(
        imported, devices="A100-40: 4, V100-16: 4", batch=8, goal="minimize-cost", limits=f"min_throughput: {rate}"
    )
    assert least.cost is not None
    assert least.cost.usd_per_iteration <= free.cost.usd_per_iteration * (1.0 + 1e-9)


def test_a_plan_for_another_engine_is_bought_only_with_a_command(imported: Path) -> None:
    document = planned(imported, devices="A100-40: 4")
    with pytest.raises(RequestError, match="is sailor-artifact, and 'up' starts sailor's own runtime"):
        api.verify(document)
    with pytest.raises(RequestError, match="the plan is for sailor-artifact, and nodes would run sailor's own runtime"):
        check_supported(document)
    check_supported(dataclasses.replace(document, job=document.job.model_copy(update={"run": "torchrun train.py"})))
