"""Thousands of small random cases: the search finds what brute force finds, and no bound is beaten."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from factories.brute_force import every_plan
from factories.planning import example, make_space, quota, tiny_job
from sailor_cloud.catalog import Service
from sailor_cloud.catalog.account.quotas import QuotaLimit
from sailor_cloud.model.job import Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.bound.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.space.goals import Figure, Limit, Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import (
    Scenario,
    evaluate,
    node_usd_per_hour,
)
from sailor_cloud.simulator.bill import checkpoint_store
from sailor_cloud.simulator.money import start
from sailor_cloud.workload import layer_costs

STEPS = 10
GOALS = (Figure.ITERATION_S, Figure.DURATION_S, Figure.TOTAL_USD, Figure.USD_PER_ITERATION, Figure.USD_PER_HOUR)
LIMITED = {
    "min_throughput": Figure.ITERATION_S,
    "deadline": Figure.DURATION_S,
    "budget_usd": Figure.TOTAL_USD,
    "max_usd_per_iteration": Figure.USD_PER_ITERATION,
    "max_usd_per_hour": Figure.USD_PER_HOUR,
}
# Of every base so many targets, and so many of them under a quota and a number of nodes.
CASES, LIMITED_CASES = 170, 30
# Every so many cases the bound is asked for again, and one with wider limits is searched, too.
SPOT_CHECK = 4


@dataclass(frozen=True)
class Known:
    """A plan made without the planner: what it reaches and how many nodes of each offer it takes."""

    figures: dict[Figure, float]
    offers: Counter[str]

    def keeps(self, target: Target) -> bool:
        return all(self.figures[limit.figure] <= limit.at_most * (1 + 1e-9) for limit in target.limits)


def one_market(number: int, dice: random.Random) -> Job:
    zones, wanted = (
        (("local-a",), {"CPU-fast": 1, "CPU-slow": 2}),
        (("local-a", "local-b"), {"CPU-fast": 1}),
        (("local-a",), {"CPU-fast": 2, "CPU-slow": 1}),
        (("local-a", "local-b"), {"CPU-slow": 1}),
        (("local-a",), {"CPU-fast": 3}),
    )[number % 5]
    return tiny_job(
        blocks=dice.randint(1, 2),
        batch=dice.randint(2, 4),
        hidden=dice.choice((32, 64, 128)),
        zones=zones,
        accelerators=wanted,
        steps=STEPS,
    )


def two_markets(dice: random.Random) -> Job:
    """Single devices on the spot market and at the fixed price; a model that fits on one or takes several."""
    hidden, blocks = dice.choice(((64, 2), (8192, 3)))
    return example(
        "gcp-a100-v100.yaml",
        constraints={},
        training__steps=STEPS,
        training__sequence_length=64,
        training__global_batch_size=dice.randint(2, 3),
        model={
            "model_type": "gpt2",
            "vocab_size": 64,
            "hidden_size": hidden,
            "num_hidden_layers": blocks,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
        },
        resources__0__zones=["us-central1-a"],
        resources__0__accelerators={"A100-40": 3},
        resources__0__instance_types=["a2-highgpu-1g"],
        resources__0__markets=["spot", "on-demand"],
    )


def every_known(scenario: Scenario) -> list[Known]:
    """Judge every plan that the job allows by the simulator and the rates of its nodes."""
    (entry,) = scenario.job.resources
    found = []
    for plan in every_plan(scenario):
        offers = Counter(node.offer for node in plan.nodes)
        taken: Counter[tuple[str, str]] = Counter()
        for name, count in offers.items():
            offer = scenario.offers[name]
            taken[offer.zone, offer.accelerator] += count
        if any(count > entry.accelerators[accelerator] for (_, accelerator), count in taken.items()):
            continue
        evaluation = evaluate(plan, scenario)
        if evaluation.fits:
            seconds = evaluation.prediction.iteration_s_replay
            egress = sum(link.bytes_per_iteration * link.usd_per_gb / 1e9 for link in evaluation.links)
            duration = evaluation.prediction.duration_s
            assert duration is not None
            saved_usd = checkpoints_usd_per_s(scenario, plan) * STEPS * seconds
            found.append(Known(figures_of(scenario, offers, seconds, duration, egress, saved_usd), offers))
    return found


def checkpoints_usd_per_s(scenario: Scenario, plan: Plan) -> float:
    """Return what storage and requests cost for a second of training; nodes stand in the bucket's region."""
    store = checkpoint_store(scenario, [scenario.offers[node.offer] for node in plan.nodes])
    if store is None:
        return 0.0
    job, services, first = scenario.job, scenario.catalog.services, plan.pipelines[0]
    saved = 12.0 * sum(
        stage.tp
        * float(
            layer_costs(scenario.decoder, job.training.sequence_length, stage.tp)
            .parameters[stage.first_layer : stage.end_layer]
            .sum()
        )
        for stage in first.stages
    )
    requests = saved / (5 * 2**20) + sum(stage.tp for stage in first.stages)
    written = requests / 1000 * services.price(*store[:2], Service.OBJECT_WRITES).usd_per_unit / job.checkpoint.every
    kept = job.checkpoint.keep * saved / 2**30 * services.price(*store[:2], Service.OBJECT_STORAGE).usd_per_unit
    return written + kept / (730 * 3600)


def figures_of(
    scenario: Scenario, offers: Counter[str], seconds: float, duration: float, egress: float, saved_usd: float
) -> dict[Figure, float]:
    known = [(scenario.offers[name], count) for name, count in offers.items()]
    rate = sum(node_usd_per_hour(offer, scenario).expected * count for offer, count in known)
    before = start(scenario, (offer.provider for offer, _ in known), offers.total())
    return {
        Figure.ITERATION_S: seconds,
        Figure.DURATION_S: duration,
        Figure.TOTAL_USD: max(duration, 60.0) * rate / 3600 + egress * (STEPS + before.iterations) + saved_usd,
        Figure.USD_PER_ITERATION: seconds * rate / 3600 + egress,
        Figure.USD_PER_HOUR: rate + egress * 3600 / seconds,
        Figure.NODES: float(offers.total()),
    }


def random_target(dice: random.Random, plans: list[Known]) -> Target:
    limits = []
    for name in dice.sample(sorted(LIMITED), dice.choice((0, 1, 1, 2, 3))):
        figure = LIMITED[name]
        limits.append(
            Limit(name=name, figure=figure, at_most=dice.choice(plans).figures[figure] * dice.uniform(0.98, 1.1))
        )
    return Target(goal=dice.choice(GOALS), limits=tuple(limits))


def under(job: Job, dice: random.Random, machine: LocalMachine | None) -> tuple[Space, QuotaLimit, int]:
    """The space of a job under a random quota and a random number of nodes."""
    names = sorted(job.resources[0].accelerators)
    chosen = dice.sample(names, dice.randint(1, len(names)))
    market = dice.choice((None, *job.resources[0].markets))
    limit = quota("Q", dice.randint(0, 3), dict.fromkeys(chosen, market), provider=job.resources[0].provider)
    nodes = dice.randint(1, 4)
    constraints = job.constraints.model_copy(update={"max_nodes": nodes})
    return make_space(job.model_copy(update={"constraints": constraints}), (limit,), machine), limit, nodes


def best_of(space: Space, target: Target) -> float | None:
    if not space.pools:
        return None
    layouts = space.remembered.setdefault("layouts", small_layouts(space))
    found = [exhaust(space.at(zero_stage), target, layouts, keep=1).drafts for zero_stage in (0, 1)]
    return min((drafts[0].figures[target.goal] for drafts in found if drafts), default=None)


def check(space: Space, target: Target, plans: list[Known]) -> float | None:
    """See that the search finds the best of the plans; return it."""
    kept = [known.figures[target.goal] for known in plans if known.keeps(target)]
    found = best_of(space, target)
    if not kept:
        assert found is None
        return None
    assert found is not None
    # The plans of two markets leave out some that the search finds, so it may only be no worse.
    assert found <= min(kept) * (1 + 1e-9)
    if len(space.scenario.job.resources[0].markets) == 1:
        assert found >= min(kept) * (1 - 1e-9)
    return found


def check_bound(space: Space, target: Target, plans: list[Known]) -> None:
    """See that no plan beats the bound, and that limits which some plan keeps are not called impossible."""
    kept = [known.figures[target.goal] for known in plans if known.keeps(target)]
    if kept:
        assert min(goal_bound(space.at(zero_stage), target) for zero_stage in (0, 1)) <= min(kept) * (1 + 1e-9)
        assert not all(breaks_limits(space.at(zero_stage), target) for zero_stage in (0, 1))


def never_worse(now: float | None, looser: float | None) -> None:
    assert now is None or (looser is not None and looser <= now * (1 + 1e-9))


def cores(count: int) -> LocalMachine:
    return LocalMachine(cores=count, speed=0.9)


@pytest.mark.parametrize(
    ("number", "machine"),
    [*((number, None) for number in range(11)), *((number, cores(1 + number % 2)) for number in range(11, 17))],
)
def test_the_search_equals_brute_force_and_more_of_anything_is_never_worse(
    number: int, machine: LocalMachine | None
) -> None:
    dice = random.Random(number)
    job = two_markets(dice) if number == 0 else one_market(number, dice)
    space = make_space(job, machine=machine)
    plans = every_known(space.scenario)
    assert len({known.offers.total() for known in plans}) > 1
    for figure in GOALS:
        check_bound(space, Target(goal=figure, limits=()), plans)
    for case in range(CASES):
        target = random_target(dice, plans)
        found = check(space, target, plans)
        if case % SPOT_CHECK == 0:
            check_bound(space, target, plans)
            wider = tuple(replace(limit, at_most=limit.at_most * 1.3) for limit in target.limits)
            never_worse(found, best_of(space, replace(target, limits=wider)))
    sizes = []
    for _ in range(LIMITED_CASES // 2):
        part, limit, nodes = under(job, dice, machine)
        units = {name: limit.units(offer) for name, offer in space.scenario.offers.items()}
        allowed = [
            known
            for known in plans
            if known.offers.total() <= nodes
            and sum(units[name] * count for name, count in known.offers.items()) <= limit.limit
        ]
        for target in (random_target(dice, plans), random_target(dice, plans)):
            never_worse(check(part, target, allowed), best_of(space, target))
        sizes.append(len(allowed))
    assert min(sizes) < len(plans)


def test_plans_of_both_markets_are_enumerated() -> None:
    space = make_space(two_markets(random.Random(0)))
    mixed = [
        layout
        for layout in small_layouts(space)
        if {space.pools[slot.pool].offer.market for slots in layout for slot in slots}
        == {Market.SPOT, Market.ON_DEMAND}
    ]
    assert mixed
    assert {pool.offer.provider for pool in space.pools} == {Provider("gcp")}
