"""What more of something would bring, in words and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.planning import AS_OF, SHALLOW, data, example, make_space, plan, quota, tiny_job
from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.job import Job
from sailor_cloud.planner.marginal import Gain, gains
from sailor_cloud.planner.search import Problem, problem_of, search
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.goals import target_of


def told(job: Job, catalog: Catalog, quotas: tuple = ()) -> tuple[dict[str, Gain], list[Job]]:
    """The gains of a job by what changed, and the jobs that were searched from the beginning."""
    anew: list[Job] = []

    def problem_of(changed: Job) -> Problem:
        anew.append(changed)
        return Problem(space=make_space(changed, quotas), target=target_of(changed), rejected=())

    found = gains(job, plan(job, quotas=quotas), catalog, problem_of, make_space(job, quotas))
    return {gain.change: gain for gain in found}, anew


@pytest.fixture
def catalog() -> Catalog:
    return data()[0]


def test_other_limits_are_searched_in_the_same_space_with_the_same_answer(catalog: Catalog) -> None:
    size = {"blocks": 2, "batch": 6, "hidden": 64, "steps": 1000, "zones": ("local-a",)}
    least = plan(tiny_job(**size, goal="minimize-cost")).cost.total_usd
    job = tiny_job(**size, constraints={"budget_usd": least * 1.01, "deadline": "1h"})
    found, anew = told(job, catalog)
    budget = found["10 % more budget"]
    more = tiny_job(**size, constraints={"budget_usd": least * 1.01 * 1.1, "deadline": "1h"})
    assert budget.before == plan(job).objective.value
    assert max(budget.after, budget.before) == pytest.approx(max(plan(more).objective.value, budget.before))
    assert found["10 % more time until the deadline"].text == "nothing"
    assert all(changed.resources != job.resources for changed in anew)


def test_a_large_search_remembers_the_plan_that_a_little_more_money_buys(catalog: Catalog) -> None:
    # It runs in both zones, and no short local search from the plan within the budget leads there.
    job = example("gcp-a100-v100.yaml", model=SHALLOW, constraints={"budget_usd": 40.0})
    inputs = {**dict(zip(("catalog", "network", "profiles"), data(), strict=True)), "clock": FixedClock(AS_OF)}
    problem = problem_of(job, **inputs)
    document = search(job, **inputs, problem=problem)

    def tell(gain: Gain) -> None:
        if gain.change == "10 % more budget":
            raise OutOfTimeError

    *_, budget = gains(
        job,
        document,
        catalog,
        lambda changed: problem_of(changed, **inputs),
        problem.space,
        found=tell,
        nearly=problem.nearly,
    )
    assert budget.change == "10 % more budget"
    assert budget.after > 1.1 * budget.before
    assert budget.before == document.objective.value


def test_more_of_a_quota_is_worth_what_one_more_node_is(catalog: Catalog) -> None:
    job = tiny_job(blocks=2, batch=6, zones=("local-a",), accelerators={"CPU-fast": 2})
    found, _ = told(job, catalog, (quota("FAST", 1, {"CPU-fast": None}),))
    gain = found["1 more devices of quota FAST in all regions"]
    assert gain.after == pytest.approx(plan(job).objective.value)
    assert gain.after > gain.before
    assert gain.text.endswith("% better")


def test_a_limit_that_rules_everything_out_shows_what_more_of_it_would_give(catalog: Catalog) -> None:
    size = {"blocks": 2, "batch": 4, "zones": ("local-a",), "goal": "minimize-cost"}
    least = plan(tiny_job(**size)).cost.total_usd
    found, _ = told(tiny_job(**size, constraints={"budget_usd": least * 0.95}), catalog)
    assert found["10 % more budget"].before is None
    assert found["10 % more budget"].text.startswith(f"a plan with {least:.4g}")
    short, _ = told(tiny_job(**size, constraints={"budget_usd": least * 0.5}), catalog)
    assert short["10 % more budget"].text == "still no plan"


def test_a_gain_names_the_plan_that_it_is_compared_with_if_another_is_explained(catalog: Catalog) -> None:
    job = tiny_job(blocks=2, batch=6, zones=("local-a",), accelerators={"CPU-fast": 2})
    quotas = (quota("FAST", 1, {"CPU-fast": None}),)
    best = plan(job, quotas=quotas)
    assert best.prediction is not None
    slow = replace(best.prediction, iteration_s_replay=2.0 * best.prediction.iteration_s_replay)
    given = replace(best, prediction=slow, objective=None)

    def problem_of(changed: Job) -> Problem:
        return Problem(space=make_space(changed, quotas), target=target_of(changed), rejected=())

    for document, named in ((given, True), (best, False)):
        found = gains(job, document, catalog, problem_of, make_space(job, quotas))
        (gain,) = (each for each in found if "quota" in each.change)
        assert best.objective is not None
        assert gain.before == pytest.approx(best.objective.value)
        own = f"of the best plan without it (this plan: {1.0 / slow.iteration_s_replay:.4g})"
        assert (own in gain.text) is named
