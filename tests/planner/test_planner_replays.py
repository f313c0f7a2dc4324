"""Drafts about as good by the closed form are told apart by the replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.goals import Figure, Limit, target_of
from sailor_cloud.planner.mixing import mix
from sailor_cloud.planner.replays import AS_GOOD, best_that_holds, first_that_holds, replayed
from sailor_cloud.planner.team import Team


@pytest.fixture(scope="module")
def searched():
    job = example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"], constraints={})
    job.resources[0].accelerators.update({"A100-40": 4, "V100-16": 16})
    space, target = make_space(job), target_of(job)
    answer = mix(space, target, keep=16)
    return space, target, sorted([*answer.drafts, *answer.others], key=Draft.order)


def seconds(chosen):
    return float(replayed(chosen.draft, chosen.evaluation)[Figure.ITERATION_S])


def test_the_best_by_the_replay_is_about_as_good_by_the_closed_form_and_better_than_the_first(searched):
    space, target, drafts = searched
    first, best = first_that_holds(space, target, drafts), best_that_holds(space, target, drafts, team=Team())
    assert first.draft is drafts[0]
    assert seconds(best) < 0.99 * seconds(first)
    assert (
        first.draft.figures[target.goal] < best.draft.figures[target.goal] <= first.draft.figures[target.goal] * AS_GOOD
    )


def test_what_breaks_a_limit_under_the_replay_is_not_taken(searched):
    space, target, drafts = searched
    first, best = first_that_holds(space, target, drafts), best_that_holds(space, target, drafts, team=Team())
    between = (seconds(first) + seconds(best)) / 2
    tight = replace(target, limits=(Limit(name="min_throughput", figure=Figure.ITERATION_S, at_most=between),))
    found = first_that_holds(space, tight, drafts)
    assert found.draft is not first.draft
    assert seconds(found) <= between
    none = replace(target, limits=(replace(tight.limits[0], at_most=seconds(best) / 2),))
    assert best_that_holds(space, none, drafts, team=Team()) is None
