"""A search over equal pipelines, one node each: quick, and good enough to give a controller something to decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache

from factories.documents import document
from factories.plans import node, pipeline, plan, stage
from sailor_cloud.launch.replanning.replan import Rates
from sailor_cloud.model.document import (
    Cost,
    CostKind,
    CostLine,
    Infeasibility,
    Inputs,
    Pick,
    PlanDocument,
    Status,
)
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider, ZoneConfidence
from sailor_cloud.model.parts import traffic_part

JOB = """
name: chaos
model: {model_type: gpt2, vocab_size: 256, hidden_size: 32, num_hidden_layers: 4, num_attention_heads: 2,
        max_position_embeddings: 32}
training: {global_batch_size: 24, sequence_length: 32, steps: 3000, precision: fp32}
constraints: {budget_usd: 60, deadline: 12h}
resources:
  - {provider: gcp, zones: [us-central1-a, us-central1-b], markets: [spot], accelerators: {A100-40: 4, V100-16: 6}}
checkpoint: {every: 10m}
"""
# Seconds that one node needs for one sample, and its price before it moves; figures of this test alone.
SPEED = {"A100-40": 0.5, "V100-16": 1.4}
PRICE = {"A100-40": 1.5, "V100-16": 0.8}
# What on-demand costs, in prices of spot.
ON_DEMAND = 10 / 3
Prices = Callable[[str, str], float]


def job(**constraints: float) -> Job:
    base = _parsed()
    return base.model_copy(update={"constraints": base.constraints.model_copy(update=constraints)})


@cache
def _parsed() -> Job:
    return parse_job(JOB)


def offer(zone: str, accelerator: str, usd_per_hour: float, market: Market = Market.SPOT) -> Offer:
    return Offer(
        id=f"gcp/{zone}/{accelerator}" + ("" if market is Market.SPOT else f"/{market}"),
        provider=Provider("gcp"),
        region="us-central1",
        zone=zone,
        instance_type=f"vm-{accelerator.lower()}",
        accelerator=accelerator,
        accelerator_count=1,
        vcpus=8,
        memory_gib=64.0,
        market=market,
        usd_per_hour=usd_per_hour * (1.0 if market is Market.SPOT else ON_DEMAND),
        as_of_from=date(2026, 11, 1),
        as_of_to=date(2026, 11, 1),
        source="test",
        confidence=Confidence.EXAMPLE,
        zone_confidence=ZoneConfidence.SEEN,
    )


@dataclass(frozen=True, slots=True)
class QuickSearch:
    """The search as a controller sees it; see `launch.replanning.replan.Search`."""

    prices: Prices = lambda zone, accelerator: PRICE[accelerator]

    chosen: list[Pick | None] = field(default_factory=list)

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        self.chosen.append(choose)
        goal = {Pick.CHEAPEST: Goal.MINIMIZE_COST, Pick.FASTEST: Goal.MINIMIZE_TIME}.get(choose, wanted.goal)
        return search(wanted.model_copy(update={"goal": goal}), self.prices)

    def offers(self, wanted: Job) -> tuple[Offer, ...]:
        kinds = sorted(
            {
                (zone, name, market)
                for entry in wanted.resources
                for zone in entry.zones
                for name in entry.accelerators
                for market in entry.markets
            }
        )
        return tuple(offer(zone, name, self.prices(zone, name), market) for zone, name, market in kinds)

    def update_link_speeds(self, rates: Rates) -> None:
        """Take no notice: no plan of this search has a link."""

    def predict(self, known: PlanDocument) -> PlanDocument:
        return known

    def migration_cost(self, known: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return 0.0, 0.0


def search(wanted: Job, prices: Prices = lambda zone, accelerator: PRICE[accelerator]) -> PlanDocument:
    """Return the best of all plans that use the first so many nodes of each kind, within the job's limits.

    A plan's nodes are all of one market.
    """
    found = [_on(market, wanted, prices) for market in (Market.SPOT, Market.ON_DEMAND)]
    best = min((one for one in found if one is not None), key=lambda one: one[0], default=None)
    if best is None:
        why = Infeasibility(constraint="budget_usd", limit=None, needed=None, unit="", message="nothing fits")
        empty = document(steps=wanted.training.steps or 1)
        return replace(
            empty, job=wanted, status=Status.INFEASIBLE, plan=None, prediction=None, cost=None, infeasibility=why
        )
    return best[1]


def _on(market: Market, wanted: Job, prices: Prices) -> tuple[float, PlanDocument] | None:
    limits: dict[tuple[str, str], int] = {}
    for entry in wanted.resources:
        for zone in entry.zones if market in entry.markets else ():
            for name, number in entry.accelerators.items():
                limits[zone, name] = limits.get((zone, name), 0) + number
    kinds = sorted(limits, key=lambda kind: (SPEED[kind[1]], kind))
    offers = {kind: offer(*kind, prices(*kind), market) for kind in kinds}
    steps = wanted.training.steps
    assert steps is not None
    best: tuple[float, PlanDocument] | None = None
    nodes: list[tuple[str, str]] = []
    for kind in kinds:
        for _ in range(limits[kind]):
            nodes = [*nodes, kind]
            if 24 % len(nodes) or len(nodes) > 12:
                continue
            found = _document(wanted, nodes, offers)
            assert found.prediction is not None
            assert found.cost is not None
            assert found.cost.total_usd is not None
            seconds = 420 + 120 + found.prediction.iteration_s_replay * steps
            budget, deadline = wanted.constraints.budget_usd, wanted.constraints.deadline
            if (budget and found.cost.total_usd > budget) or (deadline and seconds > deadline):
                continue
            value = found.cost.total_usd if wanted.goal is Goal.MINIMIZE_COST else seconds
            if best is None or value < best[0]:
                best = (value, found)
    return best


def _document(wanted: Job, kinds: list[tuple[str, str]], offers: Mapping[tuple[str, str], Offer]) -> PlanDocument:
    steps = wanted.training.steps
    base = document(steps=steps)
    assert base.prediction is not None
    share = 24 // len(kinds)
    iteration_s = max(SPEED[accelerator] for _, accelerator in kinds) * share + 0.5
    rate = sum(offers[kind].usd_per_hour for kind in kinds)
    assert steps is not None
    egress = 1e-5 * steps * (len({zone for zone, _ in kinds}) - 1)
    hours = (540 + iteration_s * steps) / 3600
    name = traffic_part("us-central1-a", "us-central1-b", "us-central1-a")
    line = CostLine(
        kind=CostKind.EGRESS,
        what=name,
        quantity=egress / 0.01,
        unit="GB",
        usd_per_unit=0.01,
        usd=egress,
        worst_usd=egress,
        price_source="test",
        price_as_of=date(2026, 11, 1),
        stale=False,
        part=name,
    )
    names = [f"n{index}" for index in range(len(kinds))]
    return replace(
        base,
        job=wanted,
        constraints=wanted.constraints,
        inputs=Inputs(offers=tuple(offers.values()), links=(), compute_profiles=()),
        plan=plan(
            nodes=tuple(node(name, offer=offers[kind].id) for name, kind in zip(names, kinds, strict=True)),
            pipelines=tuple(
                pipeline(index, (stage(0, 6, name),), microbatch_size=share) for index, name in enumerate(names)
            ),
        ),
        prediction=replace(
            base.prediction, iteration_s=iteration_s, iteration_s_replay=iteration_s, duration_s=3600 * hours
        ),
        cost=Cost(
            usd_per_iteration=rate * iteration_s / 3600,
            usd_per_hour=rate + egress / steps * 3600 / iteration_s,
            worst_case_usd_per_hour=rate + egress / steps * 3600 / iteration_s,
            total_usd=rate * hours + egress,
            worst_case_usd=rate * hours * 1.5,
            lines=(line,),
        ),
        ttl_s=(wanted.constraints.deadline or 86400.0) + 600.0,
    )
