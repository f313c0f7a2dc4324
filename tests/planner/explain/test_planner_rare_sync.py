"""Plans over several zones show what they would save if zones met seldom; nothing chooses that."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from factories.planning import AS_OF, SHALLOW, data, example
from factories.scenarios import chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Alternative, PlanDocument, Rejected
from sailor_cloud.model.plan import Plan, Recompute
from sailor_cloud.planner import SearchOptions, search
from sailor_cloud.planner.explain.rare_sync import apart
from sailor_cloud.planner.space.candidates import Candidates
from sailor_cloud.planner.space.space import Space, build
from sailor_cloud.simulator import Scenario, evaluate
from sailor_cloud.units import usd_difference_text, usd_text

SHOWN = SearchOptions(alternatives=True, decide=True)


def plan_in(scenario: Scenario, *zones: str, microbatch_size: int = 2, microbatches: int = 16) -> Plan:
    offers = [offer_in(scenario, zone, "A100-40", devices=2) for zone in zones]
    sizes = {"microbatch_size": microbatch_size, "microbatches": microbatches}
    return make_plan(scenario, [chain(p, [offer], (0, 26), **sizes) for p, offer in enumerate(offers)])


def test_the_saving_of_a_plan_over_zones_is_against_the_chosen_plan() -> None:
    scenario = gcp_scenario(batch=64)
    near, far = plan_in(scenario, *["us-central1-a"] * 2), plan_in(scenario, "us-central1-a", "us-west1-b")
    [found] = apart(scenario, [near, far])
    assert found.plan == far
    before = evaluate(near, scenario).cost.total_usd
    assert before is not None
    assert found.total_usd is not None
    assert found.label == f"sync_every: 100 (saves {usd_text(before - found.total_usd)} USD; converges differently)"
    [alone] = apart(scenario, [far])
    assert alone.plan == far
    before, egress = (evaluate(far, scenario).cost.total_usd, evaluate(far, scenario).cost.lines)
    assert before is not None
    assert alone.label == f"sync_every: 100 (saves {usd_text(before - found.total_usd)} USD; converges differently)"
    assert before - found.total_usd > 0.9 * sum(line.usd for line in egress if line.kind == "egress") > 0


def test_a_plan_without_room_for_what_islands_keep_computes_more_again() -> None:
    scenario = gcp_scenario(batch=52)
    full = plan_in(scenario, "us-central1-a", "us-west1-b", microbatch_size=26, microbatches=1)
    assert evaluate(full, scenario).fits
    [found] = apart(scenario, [full])
    assert found.plan.nodes == full.nodes
    assert [stage.recompute for part in found.plan.pipelines for stage in part.stages] == [Recompute.SELECTIVE] * 2


def test_nothing_is_shown_of_one_zone_or_where_zones_meet_rarely_already() -> None:
    scenario = gcp_scenario(batch=64)
    assert apart(scenario, [plan_in(scenario, *["us-central1-a"] * 2)]) == ()
    seldom = gcp_scenario(batch=64, sync_every=20)
    assert apart(seldom, [plan_in(seldom, "us-central1-a", "us-west1-b")]) == ()


@pytest.mark.parametrize("total", [0.0, 0.001, None])
def test_nothing_is_shown_where_nothing_is_saved(monkeypatch: pytest.MonkeyPatch, total: float | None) -> None:
    scenario = gcp_scenario(batch=64)

    def free(plan: Plan, scenario: Scenario) -> SimpleNamespace:
        """Nodes that nobody is charged for, or a saving of less than a cent."""
        found, seldom = evaluate(plan, scenario), scenario.job.training.sync_every is not None
        usd = {"usd_per_hour": found.cost.usd_per_hour if total else 0.0, "total_usd": 0.0 if seldom else total}
        return SimpleNamespace(cost=SimpleNamespace(**usd), prediction=found.prediction, fits=found.fits)

    monkeypatch.setattr("sailor_cloud.planner.explain.rare_sync.evaluate", free)
    assert apart(scenario, [plan_in(scenario, "us-central1-a", "us-west1-b")]) == ()


def _over_two_clouds(
    options: SearchOptions = SHOWN, *, clock: FixedClock | None = None, **changes: object
) -> PlanDocument:
    resources = [
        {"provider": "gcp", "zones": ["us-central1-b"], "markets": ["spot"], "accelerators": {"V100-16": 2}},
        {"provider": "aws", "zones": ["use1-az2"], "markets": ["spot"], "accelerators": {"V100-16": 4}},
    ]
    usual = {"global_batch_size": 256, "sequence_length": 1024, "precision": "fp16", "steps": 500}
    changes = {"model": SHALLOW, "constraints": {}, "training": usual, **changes}
    job = example("gcp-a100-v100.yaml", resources=resources, **changes)
    prices, links, times = data()
    return search(job, catalog=prices, network=links, profiles=times, clock=clock or FixedClock(AS_OF), options=options)


@pytest.fixture(scope="module")
def over_two_clouds() -> PlanDocument:
    return _over_two_clouds()


def _joined(found: PlanDocument) -> list[Alternative]:
    return [each for each in found.alternatives if each.label.startswith("sync_every")]


def test_a_job_over_two_clouds_shows_time_and_cost_against_the_choice(over_two_clouds: PlanDocument) -> None:
    found = over_two_clouds
    (over,) = _joined(found)
    assert over.total_usd is not None
    less = 1.0 - over.iteration_s / found.prediction.iteration_s_replay
    dearer = usd_difference_text(over.total_usd, found.cost.total_usd)
    assert less > 0.0
    assert over.label == (
        f"sync_every: 100 over aws and gcp ({100 * less:.0f} % less time, {dearer}; "
        "needs a bucket in checkpoint.to; converges differently)"
    )
    cloud_of = {node.id: node.offer.partition("/")[0] for node in over.plan.nodes}
    assert set(cloud_of.values()) == {"gcp", "aws"}
    assert all(len({cloud_of[stage.node] for stage in part.stages}) == 1 for part in over.plan.pipelines)


@pytest.mark.parametrize("limit", ["budget_usd", "max_usd_per_hour"])
def test_a_plan_over_two_clouds_keeps_the_limits_of_the_job(over_two_clouds: PlanDocument, limit: str) -> None:
    found = over_two_clouds
    (over,) = _joined(found)
    name = "total_usd" if limit == "budget_usd" else "usd_per_hour"
    most = (getattr(found.cost, name) + getattr(over, name)) / 2.0
    assert all(getattr(other, name) <= most for other in _joined(_over_two_clouds(constraints={limit: most})))


def test_a_bucket_that_the_job_names_need_not_be_asked_for() -> None:
    (over,) = _joined(_over_two_clouds(checkpoint={"every": "10m", "to": "gs://mine/run"}))
    assert "checkpoint.to" not in over.label


def test_clouds_whose_nodes_could_not_reach_each_other_are_not_joined() -> None:
    assert _joined(_over_two_clouds(cloud={"network": "private"})) == []


def test_time_that_is_over_ends_the_search_over_clouds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock(AS_OF)

    def slow(scenario: Scenario, candidates: Candidates) -> tuple[Space, tuple[Rejected, ...]]:
        clock.elapsed_s += 3600.0
        return build(scenario, candidates)

    monkeypatch.setattr("sailor_cloud.planner.explain.rare_sync.build", slow)
    options = replace(SHOWN, time_limit_s=600.0)
    found = _over_two_clouds(options, clock=clock)
    assert found.plan is not None
    assert clock.elapsed_s == 3600.0
    assert _joined(found) == []


def test_a_plan_on_several_clouds_is_never_one_that_only_lacks_rare_exchanges() -> None:
    clouds = [
        {"provider": "gcp", "zones": ["us-central1-a"], "accelerators": {"A100-40": 4}},
        {"provider": "aws", "zones": ["use1-az4"], "accelerators": {"A100-40": 8}},
    ]
    scenario = make_scenario(make_job(resources=clouds, batch=64))
    offers = [
        offer_in(scenario, "us-central1-a", "A100-40", devices=2),
        offer_in(scenario, "use1-az4", "A100-40", devices=8),
    ]
    plan = make_plan(
        scenario, [chain(p, [offer], (0, 8), microbatch_size=2, microbatches=16) for p, offer in enumerate(offers)]
    )
    assert apart(scenario, [plan]) == ()


def test_zones_that_meet_rarely_never_share_a_pipeline_between_clouds() -> None:
    training = {"global_batch_size": 256, "sequence_length": 1024, "precision": "fp16", "steps": 500, "sync_every": 100}
    found = _over_two_clouds(training=training)
    cloud_of = {node.id: node.offer.partition("/")[0] for node in found.plan.nodes}
    assert set(cloud_of.values()) == {"gcp", "aws"}
    assert all(len({cloud_of[stage.node] for stage in part.stages}) == 1 for part in found.plan.pipelines)
    assert _joined(found) == []
