"""Plans for engines whose pipelines are all alike."""

from __future__ import annotations

import dataclasses
from datetime import date
from itertools import combinations, product
from pathlib import Path

import pytest

from factories.sailor_artifact import LAYERS, write_artifact
from factories.scenarios import make_scenario
from sailor_cloud import api, catalog, interchange, network
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.search import problem_of
from sailor_cloud.planner.seeds.homogeneous import homogeneous
from sailor_cloud.planner.solving import solve
from sailor_cloud.planner.space.draft import Draft, to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.space import Space
from sailor_cloud.planner.uniform import uniform_drafts
from sailor_cloud.provision.guards import refuse_what_cannot_run
from sailor_cloud.simulator import engine_named, evaluate
from sailor_cloud.simulator.engines import StagePlace, StageSplit, UniformPipelines, stage_bounds
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.sync import sync_groups
from sailor_cloud.workload import profiles

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


@pytest.fixture(scope="module")
def document(imported: Path) -> PlanDocument:
    """The plan of four A100 in one zone."""
    job = JOB.format(batch=4, goal="maximize-throughput", limits="", zones="us-central1-a", devices="A100-40: 4")
    return api.plan(
        parse_job(job),
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


def test_the_plan_is_the_best_of_all_and_names_its_engine(imported: Path, document: PlanDocument) -> None:
    assert document.engine == "sailor-artifact"
    assert document.prediction is not None
    assert document.bound is not None
    assert document.bound >= 1.0 / document.prediction.iteration_s_replay
    assert document.prediction.iteration_s_replay <= brute_force_s(imported, 4) * 1.0002


def found(imported: Path, job: str) -> tuple[Space, list[Draft]]:
    """Return the drafts of a job, best first, without what a document tells beside them."""
    problem = problem_of(
        parse_job(job),
        catalog=catalog.load(pricing=imported / "pricing"),
        network=network.load(profiles=imported / "bandwidth_profiles", pricing=imported / "pricing"),
        profiles=profiles.load(profiles=imported / "compute_profiles"),
        clock=SystemClock(),
        engine=engine_named("sailor-artifact", profiles=imported / "compute_profiles"),
    )
    return problem.space, uniform_drafts(problem.space, problem.target, NORMAL)


def planned(job: str, engine: str) -> tuple[Space, list[Draft]]:
    """Return the drafts of a job for an engine that has no formulas, best first."""
    problem = problem_of(
        parse_job(job),
        catalog=catalog.load(),
        network=network.load(),
        profiles=profiles.load(),
        clock=SystemClock(),
        engine=engine_named(engine),
    )
    return problem.space, uniform_drafts(problem.space, problem.target, NORMAL)


def test_a_local_search_places_equal_pipelines_on_nodes_of_several_sizes() -> None:
    text = JOB.format(batch=30, goal="maximize-throughput", limits="", zones="us-central1-a", devices="V100-16: 5")
    space, chains = planned(text.replace("sailor-opt-350", "opt-1.3b").replace("fp32", "fp16"), "megatron")
    answer = solve(space, target_of(space.scenario.job))
    best = min(draft.foreseen[Figure.ITERATION_S] for draft in answer.drafts)
    assert best < 0.97 * chains[0].foreseen[Figure.ITERATION_S]
    for plan in (to_plan(space, draft) for draft in (*answer.drafts, *answer.others)):
        stages = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
        assert len({stage.tp for stage in stages}) == 1
        assert len({(each.microbatch_size, each.microbatches, len(each.stages)) for each in plan.pipelines}) == 1
        assert sum(each.microbatch_size * each.microbatches for each in plan.pipelines) == 30


def test_pipelines_are_alike_over_zones_and_fit_by_the_artifacts_rule(imported: Path) -> None:
    zones, devices = "us-central1-a, us-central1-b", "A100-40: 4"
    job = JOB.format(batch=8, goal="maximize-throughput", limits="", zones=zones, devices=devices)
    space, (best, *_) = found(imported, job)
    plan = to_plan(space, best)
    evaluation = evaluate(plan, space.scenario)
    assert evaluation.fits
    assert evaluation.prediction.iteration_s_replay == pytest.approx(best.foreseen[Figure.ITERATION_S])
    assert len({(p.microbatch_size, tuple(stage.layers for stage in p.stages)) for p in plan.pipelines}) == 1
    assert plan.pipelines[0].microbatch_size in (1, 2, 4)
    exported = interchange.export_plan(plan, space.scenario.offers)
    assert exported["pipeline_list"][0]["dp"][0] == len(plan.pipelines)


def test_a_limit_on_money_is_kept_and_a_limit_on_time_makes_plans_cheap(imported: Path) -> None:
    wanted = {"batch": 8, "zones": "us-central1-a", "devices": "A100-40: 4"}
    _, (free, *_) = found(imported, JOB.format(goal="maximize-throughput", limits="", **wanted))
    usd = 1.001 * free.foreseen[Figure.USD_PER_ITERATION]
    limits = f"max_usd_per_iteration: {usd}"
    _, (kept, *others) = found(imported, JOB.format(goal="maximize-throughput", limits=limits, **wanted))
    assert kept.foreseen[Figure.ITERATION_S] == pytest.approx(free.foreseen[Figure.ITERATION_S])
    assert all(draft.foreseen[Figure.USD_PER_ITERATION] <= usd for draft in (kept, *others))
    rate = 0.5 / free.foreseen[Figure.ITERATION_S]
    _, (least, *_) = found(imported, JOB.format(goal="minimize-cost", limits=f"min_throughput: {rate}", **wanted))
    assert least.foreseen[Figure.USD_PER_ITERATION] <= free.foreseen[Figure.USD_PER_ITERATION]
    assert least.foreseen[Figure.ITERATION_S] <= 1.0 / rate


@pytest.mark.parametrize(("engine", "extra_stages"), [("fsdp", 0), ("nanotron", 1)])
def test_an_engine_gets_as_many_microbatches_as_it_needs(engine: str, extra_stages: int) -> None:
    text = JOB.format(batch=2, goal="maximize-throughput", limits="", zones="us-central1-a", devices="L4-24: 8")
    space, drafts = planned(text.replace("sailor-opt-350", "gpt-neo-2.7b").replace("fp32", "bf16"), engine)
    plans = [to_plan(space, draft) for draft in drafts]
    assert max(len(plan.pipelines[0].stages) for plan in plans) == 2 + extra_stages
    for plan in plans:
        assert len(plan.pipelines[0].stages) <= plan.pipelines[0].microbatches + extra_stages


@pytest.mark.parametrize("engine", ["fsdp", "deepspeed"])
def test_the_search_counts_the_messages_of_zero_3_that_the_simulator_counts(engine: str) -> None:
    text = JOB.format(
        batch=16, goal="maximize-throughput", limits="", zones="us-central1-a", devices="A100-40: 16"
    ).replace("sailor-opt-350", "gpt-neo-2.7b")
    space, _ = planned(text.replace("precision: fp32", "precision: bf16, max_zero_stage: 3"), engine)
    sharded, target = space.at(3), target_of(space.scenario.job)
    assert sharded.bucket_bytes != space.at(1).bucket_bytes == space.scenario.engine.bucket_bytes
    drafts = [draft for draft in homogeneous(sharded, target) if len(draft.pipelines) > 1]
    assert drafts
    sync = Assessor(sharded, target).sync
    for draft in drafts[:: max(1, len(drafts) // 6)]:
        plan = to_plan(sharded, draft)
        assert plan.zero_stage == 3
        layout, cuts = zip(*((part.slots, part.cut) for part in draft.pipelines), strict=True)
        expected = [group.seconds for group in sync_groups(lay_out(plan, space.scenario))]
        assert [each.seconds for each in sync.sums(layout, cuts)] == pytest.approx(expected, rel=1e-9)


def test_nanotron_gets_the_cuts_that_it_makes_itself() -> None:
    text = JOB.format(
        batch=8, goal="maximize-throughput", limits="", zones="us-central1-a", devices="A100-40: 4, V100-16: 4"
    )
    space, drafts = planned(text, "nanotron")
    decoder, cuts = space.scenario.decoder, set()
    for plan in (to_plan(space, draft) for draft in drafts):
        stages = plan.pipelines[0].stages
        cuts.add((*(stage.first_layer for stage in stages), decoder.layers))
    assert cuts <= {stage_bounds(StageSplit.WEIGHTED, decoder, len(cut) - 1) for cut in cuts}
    assert max(map(len, cuts)) > 2


def test_a_plan_for_another_engine_is_bought_only_with_a_command(document: PlanDocument) -> None:
    with pytest.raises(
        RequestError, match="is for sailor-artifact; 'up' runs sailor's own engine, so plan with --engine"
    ):
        refuse_what_cannot_run(document)
    refuse_what_cannot_run(
        dataclasses.replace(document, job=document.job.model_copy(update={"run": "torchrun train.py"}))
    )
