"""A complete PlanDocument of two local nodes, for tests of what comes after the search."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from functools import cache

from factories.plans import node, pipeline, plan, stage
from sailor_cloud.model.document import (
    SCHEMA_VERSION,
    Choice,
    Cost,
    CostKind,
    CostLine,
    Decision,
    ErrorShare,
    Infeasibility,
    Inputs,
    LeftOut,
    Objective,
    Pick,
    PlanDocument,
    Prediction,
    Rejected,
    Search,
    StageMemory,
    Status,
    Subject,
    Totals,
    TotalsQuantile,
    Waits,
)
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider, ZoneConfidence

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PRICED = date(2026, 11, 1)

JOB_TEXT = """
name: tiny
model: {model_type: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 4, num_attention_heads: 2,
        max_position_embeddings: 32}
training: {global_batch_size: 8, sequence_length: 32, steps: 20, precision: fp32}
constraints: {budget_usd: 1.0, deadline: 10m}
resources:
  - {provider: local, zones: [local-a, local-b], accelerators: {CPU-fast: 1, CPU-slow: 1}}
"""


@cache
def job() -> Job:
    return parse_job(JOB_TEXT)


def offer(name: str, accelerator: str, zone: str, *, usd_per_hour: float = 0.2) -> Offer:
    return Offer(
        id=name,
        provider=Provider("local"),
        region="local",
        zone=zone,
        instance_type=f"local-{accelerator.lower()}",
        accelerator=accelerator,
        accelerator_count=1,
        vcpus=1,
        memory_gib=1.0,
        market=Market.ON_DEMAND,
        usd_per_hour=usd_per_hour,
        as_of_from=PRICED,
        as_of_to=PRICED,
        source="example",
        confidence=Confidence.EXAMPLE,
        zone_confidence=ZoneConfidence.SEEN,
    )


def document(*, steps: int | None = 20) -> PlanDocument:
    """Two pipelines of different size: CPU-fast alone, and CPU-fast with CPU-slow."""
    base = job()
    tiny = base.model_copy(update={"training": base.training.model_copy(update={"steps": steps})})
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.OPTIMAL,
        created_at=NOW,
        as_of=NOW,
        job=tiny,
        inputs=Inputs(
            offers=(offer("fast-a", "CPU-fast", "local-a"), offer("slow-b", "CPU-slow", "local-b", usd_per_hour=0.1)),
            links=(),
            compute_profiles=(),
        ),
        objective=Objective(goal=tiny.goal, value=2.0, unit="iterations/s"),
        constraints=tiny.constraints,
        optimality_gap=0.0,
        bound=2.0,
        search=Search(seconds=0.1),
        plan=plan(
            nodes=(node("n0", offer="fast-a"), node("n1", offer="slow-b")),
            pipelines=(pipeline(0, (stage(0, 4, "n0"), stage(4, 6, "n1")), microbatch_size=2, microbatches=4),),
        ),
        prediction=_prediction(steps),
        cost=_cost(steps),
        ttl_s=600.0,
        infeasibility=None,
        alternatives=(),
        rejected=(),
        totals=_totals() if steps else None,
    )


def infeasible() -> PlanDocument:
    """A document without a plan: the budget is too small, and one accelerator is ruled out."""
    return replace(
        document(),
        status=Status.INFEASIBLE,
        plan=None,
        prediction=None,
        cost=None,
        infeasibility=Infeasibility(
            constraint="budget_usd", limit=1.0, needed=2.5, unit="USD", message="budget 1 USD is below 2.5 USD"
        ),
        rejected=(Rejected(what="V100-16", why="no bf16"),),
    )


def costing(changed: PlanDocument, *lines: CostLine) -> PlanDocument:
    assert changed.cost is not None
    return replace(changed, cost=replace(changed.cost, lines=lines))


def cost_line(kind: CostKind, what: str, *, quantity: float, usd_per_unit: float, unit: str = "h") -> CostLine:
    return CostLine(
        kind=kind,
        what=what,
        quantity=quantity,
        unit=unit,
        usd_per_unit=usd_per_unit,
        usd=quantity * usd_per_unit,
        worst_usd=quantity * usd_per_unit,
        price_source="example",
        price_as_of=PRICED,
        stale=False,
        part=what,
    )


def _prediction(steps: int | None) -> Prediction:
    return Prediction(
        iteration_s=0.5,
        iteration_s_replay=0.5,
        error_p50=0.06,
        error_p90=0.15,
        throughput_iterations_per_s=2.0,
        samples_per_s=16.0,
        duration_s=0.5 * steps if steps else None,
        waits=Waits(compute_s=0.4, transfer_s=0.05, bubble_s=0.04, sync_s=0.01),
        memory=(
            StageMemory(
                pipeline=0,
                stage=0,
                parts={"weights": 2_000_000, "activations": 3_000_000},
                total_bytes=5_000_000,
                limit_bytes=16_000_000,
            ),
        ),
        error_shares=(
            _error_share("layers on CPU-slow in fp32", 0.9, measured=False),
            _error_share("runs of one plan differ", 0.1, measured=True),
        ),
    )


def _error_share(what: str, share: float, *, measured: bool) -> ErrorShare:
    measurement = "'sailor-cloud profile JOB' on that accelerator"
    return ErrorShare(what=what, share=share, error_p50=0.06 * share**0.5, measured=measured, measurement=measurement)


def _totals() -> Totals:
    return Totals(
        quantiles=(
            TotalsQuantile(probability=0.05, duration_s=8.0, total_usd=0.0025),
            TotalsQuantile(probability=0.95, duration_s=13.0, total_usd=0.0039),
        ),
        within_budget=0.873,
        within_deadline=0.9999,
        within_limits=0.873,
    )


def _cost(steps: int | None) -> Cost:
    line = cost_line(CostKind.COMPUTE, "2 nodes", quantity=0.01, usd_per_unit=0.3)
    return Cost(
        usd_per_iteration=0.0001,
        usd_per_hour=0.3,
        worst_case_usd_per_hour=0.3,
        total_usd=0.003 if steps else None,
        worst_case_usd=0.01 if steps else None,
        lines=(line,),
    )


def decided() -> PlanDocument:
    """A document with two choices, of which the fastest is chosen, and two things that it leaves out."""
    base = document()
    assert base.plan is not None
    cheap = Choice(
        picks=(Pick.CHEAPEST, Pick.BALANCED),
        chosen=False,
        plan=base.plan,
        offers=base.inputs.offers,
        iteration_s=1.5,
        duration_s=15.0,
        usd_per_hour=0.1,
        usd_per_iteration=0.0001,
        total_usd=0.001,
        within_budget=0.9999,
        within_deadline=0.974,
        within_limits=0.974,
        devices={"CPU-slow": 1},
        zones=("local-b",),
        markets=("on-demand",),
        why="lowest cost within the limits; 1.5× slower than the fastest",
    )
    fast = replace(
        cheap,
        picks=(Pick.FASTEST,),
        chosen=True,
        duration_s=10.0,
        total_usd=0.003,
        within_limits=0.9999,
        devices={"CPU-fast": 1, "CPU-slow": 1},
        zones=("local-a", "local-b"),
        why="shortest time within the limits; +0.00200 USD for 33 % less time than the cheapest",
    )
    left = (
        LeftOut(
            subject=Subject.ZONE, name="local-c", why="run 2.0× slower, +6.56 USD", runs_on="1 CPU-slow in local-c"
        ),
        LeftOut(subject=Subject.ACCELERATOR, name="CPU-big", why="no price is known"),
    )
    notes = ("the balanced plan costs 0.00200 USD less and is 50 % slower",)
    decision = Decision(chosen=Pick.FASTEST, asked=None, choices=(cheap, fast), left_out=left, notes=notes)
    return replace(base, decision=decision)
