"""What an infeasible job is told: the smallest change is enough, and one per cent less of it is not."""

from __future__ import annotations

import random
import re

import pytest

from factories.planning import make_space, plan, quota, tiny_job
from sailor_cloud.model.document import Status
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.explain.infeasible import explain_infeasible
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.goals import Figure, target_of

# By how much of itself a change is taken back to see that it was needed.
LESS = 0.01
GOALS = ("maximize-throughput", "minimize-cost", "minimize-time")


def feasible(space, constraints) -> bool:
    job = space.scenario.job.model_copy(
        update={"constraints": space.scenario.job.constraints.model_copy(update=constraints)}
    )
    _, chosen = Searched().best(space, target_of(job))
    return chosen is not None


@pytest.mark.parametrize("number", range(8))
def test_the_named_change_is_enough_and_one_per_cent_less_is_not(number):
    dice = random.Random(number)
    job = tiny_job(
        blocks=dice.randint(1, 2),
        batch=dice.randint(2, 4),
        hidden=64,
        zones=("local-a",),
        accelerators=dice.choice(({"CPU-fast": 1, "CPU-slow": 1}, {"CPU-fast": 2})),
        goal=dice.choice(GOALS),
        steps=dice.choice((10, 1000)),
    )
    space = make_space(job)
    layouts = small_layouts(space)
    names = {
        "budget_usd": Figure.TOTAL_USD,
        "deadline": Figure.DURATION_S,
        "max_usd_per_hour": Figure.USD_PER_HOUR,
        "min_throughput": Figure.ITERATION_S,
        "max_usd_per_iteration": Figure.USD_PER_ITERATION,
    }
    told = 0
    for _ in range(12):
        constraints = {}
        for name in dice.sample(sorted(names), dice.randint(1, 3)):
            goal = target_of(job.model_copy(update={"constraints": job.constraints}))
            least = (
                exhaust(space, type(goal)(goal=names[name], limits=()), layouts, keep=1).drafts[0].figures[names[name]]
            )
            limit = least * dice.choice((0.5, 0.9, 1.02, 1.1, 1.5))
            constraints[name] = 1.0 / limit if name == "min_throughput" else limit
        limited = job.model_copy(update={"constraints": job.constraints.model_copy(update=constraints)})
        target = target_of(limited)
        searched = Searched()
        if searched.best(space, target)[1] is not None:
            continue
        why = explain_infeasible(space, target, searched)
        told += 1
        changed = {why.constraint: why.needed}
        for name, value in re.findall(r"(?:with that,|and) (\w+) ([\d.e+-]+) ", why.message):
            changed[name] = float(value)
        assert feasible(space, {**constraints, **changed}), (constraints, why)
        for name, value in changed.items():
            less = value * (1 + LESS) if name == "min_throughput" else value * (1 - LESS)
            assert not feasible(space, {**constraints, **changed, name: less}), (constraints, why)
    assert told


def big(quotas):
    """A job whose model needs several devices, under an account's limits."""
    return plan(tiny_job(blocks=6, hidden=512, batch=2, accelerators={"CPU-fast": 2}), quotas=quotas)


def test_a_quota_that_rules_every_plan_out_is_named_with_the_least_that_would_do():
    free = big(())
    document = big((quota("FAST", 3, {"CPU-fast": None}, used=2),))
    why = document.infeasibility
    assert document.status is Status.INFEASIBLE
    assert (why.constraint, why.limit, why.unit) == ("quota", 1.0, "devices")
    assert 1.0 < why.needed <= len(free.plan.nodes)
    assert f"quota 1 < {why.needed:g} devices: FAST of all regions" in why.message
    assert f"a limit of {why.needed + 2:g} would do" in why.message
    assert big((quota("FAST", why.needed + 2, {"CPU-fast": None}, used=2),)).plan is not None
    assert big((quota("FAST", why.needed + 1, {"CPU-fast": None}, used=2),)).plan is None


def test_an_account_that_may_buy_nothing_learns_which_quota_it_needs():
    document = plan(
        tiny_job(zones=("local-a",), accelerators={"CPU-fast": 2}), quotas=(quota("F", 0, {"CPU-fast": None}),)
    )
    assert document.infeasibility.message.startswith("quota 0 < 1 devices: F of all regions")
    assert document.rejected[0].why.startswith("quota 0 < 1 devices of a node")


def test_a_quota_is_reported_next_to_the_constraint_that_it_prevents():
    job = tiny_job(blocks=4, batch=8, hidden=64, zones=("local-a",), accelerators={"CPU-fast": 2}, steps=5000)
    both = plan(job).prediction.duration_s
    late = job.model_copy(update={"constraints": job.constraints.model_copy(update={"deadline": both * 1.05})})
    limit = (quota("FAST", 1, {"CPU-fast": None}),)
    message = plan(late, quotas=limit).infeasibility.message
    assert "the shortest deadline that would do is" in message
    assert "or instead: quota 1 < 2 devices: FAST of all regions" in message


def test_a_search_that_is_not_exhaustive_does_not_claim_the_smallest_change():
    space = make_space(tiny_job(zones=("local-a",), constraints={"budget_usd": 1e-7}))
    target = target_of(space.scenario.job)
    exact = explain_infeasible(space, target, Searched()).message
    found = explain_infeasible(space, target, Searched(), exact=False).message
    assert "the smallest budget that would do is" in exact
    assert "the smallest budget found that would do is" in found


REACHED = {
    "deadline": lambda found: found.prediction.duration_s,
    "max_usd_per_iteration": lambda found: found.cost.usd_per_iteration,
    "min_throughput": lambda found: found.prediction.throughput_iterations_per_s,
}


@pytest.mark.parametrize(
    ("devices", "batch", "goal", "names"),
    [
        ({"CPU-fast": 2, "CPU-slow": 2}, 4, "minimize-time", ("max_usd_per_iteration", "min_throughput")),
        ({"CPU-fast": 2, "CPU-slow": 2}, 4, "minimize-cost", ("max_usd_per_iteration", "deadline")),
        ({"CPU-fast": 4}, 8, "minimize-cost", ("max_usd_per_iteration", "min_throughput")),
    ],
)
def test_limits_that_a_plan_just_keeps_permit_one_even_without_full_enumeration(devices, batch, goal, names):
    job = tiny_job(blocks=2, batch=batch, hidden=64, accelerators=devices, goal=goal, steps=1000)
    assert small_layouts(make_space(job)) is None
    free = plan(job)
    # Rounded to the side that suffices, as remedies are told.
    loose = {name: REACHED[name](free) * (1 - 1e-4 if name == "min_throughput" else 1 + 1e-4) for name in names}
    limited = plan(job.model_copy(update={"constraints": job.constraints.model_copy(update=loose)}))
    assert limited.plan is not None, limited.infeasibility
    assert limited.objective.value == pytest.approx(free.objective.value, rel=1e-3)
