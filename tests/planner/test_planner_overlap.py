"""What the replay finds is known before, about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.draft import to_plan
from sailor_cloud.planner.goals import Figure, Limit, target_of
from sailor_cloud.planner.mixing import mix
from sailor_cloud.planner.overlap import Overlap
from sailor_cloud.planner.replayed import replayed
from sailor_cloud.simulator import evaluate

ONE_ZONE = {"resources__0__zones": ["us-central1-a"], "constraints": {}}


@pytest.fixture(scope="module", params=["gcp-a100-v100.yaml", "bf16"])
def drafts(request):
    """The best plans of a job by the closed form; the second job's precision leaves A100s alone, with ZeRO."""
    changes = {"training__precision": "bf16"} if request.param == "bf16" else {}
    job = example("gcp-a100-v100.yaml", **ONE_ZONE, **changes)
    job.resources[0].accelerators.update({"A100-40": 8, "V100-16": 8})
    space, target = make_space(job), target_of(job)
    return space, target, mix(space, target, keep=24).drafts


def by_replay(space, draft):
    return replayed(draft, evaluate(to_plan(space, draft), space.scenario))


def test_estimates_are_nearer_to_the_replay_than_the_closed_form_and_hardly_below_it(drafts):
    space, target, some = drafts
    overlap = Overlap(Assessor(space, target))
    assert len(some) > 5
    off, closed_off = [], []
    for draft in some:
        seconds = float(by_replay(space, draft)[Figure.ITERATION_S])
        off.append(overlap.figures(draft)[Figure.ITERATION_S] / seconds - 1.0)
        closed_off.append(draft.figures[Figure.ITERATION_S] / seconds - 1.0)
    assert -0.005 < min(off) <= max(off) < 0.02
    assert sum(off) < 0.5 * sum(closed_off)


def test_a_measured_draft_is_estimated_as_the_replay_finds_it(drafts):
    space, target, some = drafts
    draft = some[0]
    total = float(by_replay(space, draft)[Figure.TOTAL_USD])
    for at_most, kept in ((total * 1.0001, True), (total * 0.9999, False)):
        tight = replace(target, limits=(Limit(name="budget_usd", figure=Figure.TOTAL_USD, at_most=at_most),))
        overlap = Overlap(Assessor(space, tight))
        excess, _ = replace(overlap, factors=overlap.measured(draft)).rank(draft)
        assert (excess == 1.0) is kept


def test_without_overlap_the_closed_form_is_what_is_expected(drafts):
    space, target, some = drafts
    scenario = replace(space.scenario, engine=replace(space.scenario.engine, overlap_sync=False))
    overlap = Overlap(Assessor(replace(space, scenario=scenario), target))
    assert overlap.figures(some[0]) == some[0].figures
