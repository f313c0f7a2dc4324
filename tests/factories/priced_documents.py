"""A PlanDocument of GCP nodes, priced and timed by the simulator, for tests of reports."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from factories.scenarios import AS_OF, chain, make_job, make_plan, make_scenario, offer_in
from sailor_cloud.model.document import (
    SCHEMA_VERSION,
    Alternative,
    Inputs,
    Objective,
    PlanDocument,
    Rejected,
    Search,
    Status,
)
from sailor_cloud.model.job import Constraints
from sailor_cloud.model.offer import Market
from sailor_cloud.model.plan import Plan
from sailor_cloud.simulator import Evaluation, Scenario, TimelineSpan, evaluate

RESOURCES = {
    "provider": "gcp",
    "zones": ["us-central1-a", "us-central1-b", "us-west1-b"],
    "markets": ["spot", "on-demand"],
    "accelerators": {"A100-40": 16, "V100-16": 16},
}


def gcp_document(*, budget_usd: float = 900.0) -> PlanDocument:
    """Two pipelines: four A100 stages in one zone, and A100 with V100 over two regions."""
    document = _gcp_document()[0]
    return replace(document, constraints=document.constraints.model_copy(update={"budget_usd": budget_usd}))


def gcp_timeline() -> tuple[TimelineSpan, ...]:
    return _gcp_document()[1]


@cache
def _gcp_document() -> tuple[PlanDocument, tuple[TimelineSpan, ...]]:
    job = make_job(
        model={"preset": "sailor-opt-350"},
        resources=[RESOURCES],
        batch=128,
        sequence_length=2048,
        precision="fp16",
        steps=2000,
    )
    job = job.model_copy(
        update={"name": "opt-350m", "constraints": Constraints(budget_usd=900.0, deadline=24 * 3600.0)}
    )
    scenario = make_scenario(job)
    mixed, single = _mixed_plan(scenario), _single_zone_plan(scenario)
    found, other = evaluate(mixed, scenario, timeline=True), evaluate(single, scenario)
    return _document(scenario, mixed, found, single, other), found.timeline


def _mixed_plan(scenario: Scenario) -> Plan:
    a100 = offer_in(scenario, "us-central1-a", "A100-40", devices=1)
    v100 = offer_in(scenario, "us-west1-b", "V100-16", devices=1, market=Market.SPOT)
    layers = scenario.decoder.layers
    chains = [
        chain(0, [a100, a100], (0, 13, layers), microbatch_size=2, microbatches=44),
        chain(1, [a100, v100], (0, 19, layers), microbatch_size=2, microbatches=20),
    ]
    return make_plan(scenario, chains)


def _single_zone_plan(scenario: Scenario) -> Plan:
    a100 = offer_in(scenario, "us-central1-a", "A100-40", devices=1)
    chains = [chain(0, [a100, a100], (0, 13, scenario.decoder.layers), microbatch_size=2, microbatches=64)]
    return make_plan(scenario, chains)


def _document(scenario: Scenario, plan: Plan, found: Evaluation, other_plan: Plan, other: Evaluation) -> PlanDocument:
    used = {node.offer for node in (*plan.nodes, *other_plan.nodes)}
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.FEASIBLE,
        created_at=AS_OF,
        as_of=AS_OF,
        job=scenario.job,
        inputs=Inputs(
            offers=tuple(scenario.offers[name] for name in sorted(used)),
            links=found.links,
            compute_profiles=found.profiles,
        ),
        objective=Objective(
            goal=scenario.job.goal, value=found.prediction.throughput_iterations_per_s, unit="iterations/s"
        ),
        constraints=scenario.job.constraints,
        optimality_gap=0.021,
        bound=found.prediction.throughput_iterations_per_s * 1.021,
        search=Search(seconds=0.8),
        plan=plan,
        prediction=found.prediction,
        cost=found.cost,
        ttl_s=24 * 3600.0 + 600,
        infeasibility=None,
        alternatives=(_alternative("A100-40 only", other_plan, other),),
        rejected=(
            Rejected(what="H100-80 in us-west1-b", why="is not offered there"),
            Rejected(
                what="all V100-16",
                why="does not fit in memory: equal stages need 20 V100-16, and the quota is 16",
                restrictions=("one-accelerator",),
            ),
        ),
        totals=found.totals,
    )


def _alternative(label: str, plan: Plan, found: Evaluation) -> Alternative:
    return Alternative(
        label=label,
        plan=plan,
        iteration_s=found.prediction.iteration_s_replay,
        throughput_iterations_per_s=found.prediction.throughput_iterations_per_s,
        usd_per_hour=found.cost.usd_per_hour,
        total_usd=found.cost.total_usd,
        duration_s=found.prediction.duration_s,
    )
