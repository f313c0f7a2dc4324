"""Good drafts are told apart by the replay, and what it leaves of limits is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement.choice import best_that_holds, first_that_holds
from sailor_cloud.planner.solving import Searched, solve
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, Limit, target_of


@pytest.fixture(scope="module")
def searched():
    changes = {"resources__0__zones": ["us-central1-a"], "constraints": {}, "model": {"preset": "opt-1.3b"}}
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 8, "V100-16": 32}, **changes)
    space, target = make_space(job), target_of(job)
    answer = solve(space, target, (), NORMAL.lighter())
    return space, target, from_a_misjudged_one(space, target, sorted([*answer.drafts, *answer.others], key=Draft.order))


def from_a_misjudged_one(space, target, drafts):
    """Return the drafts from the first one on after which, by the closed form, a better one by the replay comes."""
    for start in range(len(drafts)):
        first, best = (choose(space, target, drafts[start:]) for choose in (first_that_holds, best_that_holds))
        if found(best) < 0.999 * found(first):
            return drafts[start:]
    pytest.fail("closed form and replay order these drafts alike: take another job")


def limited(target, figure, at_most):
    return replace(target, limits=(Limit(name="limit", figure=figure, at_most=at_most),))


def found(chosen, figure=Figure.ITERATION_S):
    return float(replayed(chosen.draft, chosen.evaluation)[figure])


def test_the_best_by_the_replay_is_better_than_the_first_by_the_closed_form(searched):
    space, target, drafts = searched
    first, best = first_that_holds(space, target, drafts), best_that_holds(space, target, drafts)
    assert first.draft is drafts[0]
    assert found(best) < 0.999 * found(first)


def test_no_draft_near_the_best_is_better_under_the_replay(searched):
    space, target, drafts = searched
    best = best_that_holds(space, target, drafts)
    every = [first_that_holds(space, target, [draft]) for draft in drafts[:24]]
    assert found(best) <= min(found(chosen) for chosen in every if chosen is not None)


def test_plans_that_break_a_limit_under_the_replay_are_not_taken(searched):
    space, target, drafts = searched
    first, best = first_that_holds(space, target, drafts), best_that_holds(space, target, drafts)
    between = (found(first) + found(best)) / 2
    held = first_that_holds(space, limited(target, Figure.ITERATION_S, between), drafts)
    assert held.draft is not first.draft
    assert found(held) <= between
    assert best_that_holds(space, limited(target, Figure.ITERATION_S, found(best) / 2), drafts) is None


def test_a_limit_that_only_the_closed_form_breaks_forbids_nothing_and_the_bound_holds_for_the_plan(searched):
    space, target, drafts = searched
    best = best_that_holds(space, target, drafts)
    figure = Figure.USD_PER_ITERATION
    spent, counted = found(best, figure), best.draft.figures[figure]
    assert spent < 0.97 * counted
    tight = limited(target, figure, (spent + counted) / 2)
    assert not Assessor(space, tight).keeps(best.draft)
    answer, chosen = Searched().best(space, tight)
    assert found(chosen) <= found(best) * 1.002
    assert found(chosen, figure) <= tight.limits[0].at_most
    assert answer.bound <= found(chosen)
