"""A time limit: the search ends at the next look at the clock, with the best plan so far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.counted_clock import CountedClock
from factories.planning import data, example, make_space, tiny_job
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job import Job
from sailor_cloud.planner.explain.shortage import NO_PLAN
from sailor_cloud.planner.search import SearchOptions, _Incumbents, search
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.effort import Deadline, NoPlanInTimeError, OutOfTimeError
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.planner.space.restrictions import Restriction


def limited(
    job: Job, seconds: float, clock: CountedClock, *restrictions: Restriction, frontier: bool = True
) -> PlanDocument:
    prices, links, times = data()
    options = SearchOptions(
        restrictions=restrictions, alternatives=True, decide=True, frontier=frontier, top=3, time_limit_s=seconds
    )
    return search(job, options=options, catalog=prices, network=links, profiles=times, clock=clock)


@pytest.mark.parametrize("looks", [60, 1200])
@pytest.mark.parametrize("batch", [1024, 10**7])
def test_a_search_ends_with_a_plan_at_the_first_look_at_the_clock_after_its_time(looks: int, batch: int) -> None:
    clock = CountedClock()
    job = example("gcp-a100-v100.yaml", training__global_batch_size=batch, constraints={})
    document = limited(job, looks, clock)
    assert document.status is Status.FEASIBLE
    # When it begins, when it is over, and how long it took.
    assert clock.looks <= looks + 3


def test_where_no_plan_keeps_the_limits_in_time_the_nearest_one_says_what_it_needs() -> None:
    job = example("gcp-a100-v100.yaml", training__global_batch_size=10**7)
    with pytest.raises(
        NoPlanInTimeError, match=r"nearest one found needs budget_usd \d{3},\d00.00 USD and deadline \d.\d years"
    ):
        limited(job, 1200, CountedClock())


def test_more_time_never_gives_a_worse_plan() -> None:
    job = example("gcp-a100-v100.yaml")
    found = [limited(job, looks, CountedClock()).objective for looks in (60, 300, 1200)]
    values = [each.value for each in found if each is not None]
    assert len(values) == 3
    assert values == sorted(values)


def test_a_search_that_ends_soon_has_tried_all_accelerators_and_zones_together() -> None:
    document = limited(example("gcp-a100-v100.yaml", constraints={}), 600, CountedClock())
    assert len({(offer.zone, offer.accelerator) for offer in document.inputs.offers}) == 4


@pytest.mark.parametrize("frontier", [True, False])
def test_a_requested_frontier_that_the_time_limit_prevented_is_noted(frontier: bool) -> None:
    document = limited(example("gcp-a100-v100.yaml", constraints={}), 300, CountedClock(), frontier=frontier)
    assert document.search.cut_short
    assert not document.frontier
    assert document.decision is not None
    assert any("before the Pareto frontier" in note for note in document.decision.notes) is frontier


def test_a_plan_in_a_smaller_space_is_the_answer_when_time_is_up() -> None:
    document = limited(example("gcp-a100-v100.yaml"), 200, CountedClock(), Restriction.ONE_ZONE)
    assert document.plan is not None
    zones = {offer.zone for offer in document.inputs.offers}
    assert len(zones) == 1


def test_a_skipped_search_is_not_reported_as_without_a_plan() -> None:
    document = limited(example("seven-kinds.yaml"), 120, CountedClock())
    assert document.decision is not None
    reasons = {row.why for row in document.decision.left_out if not row.runs_on}
    assert "none found before the time limit ended the search" in reasons
    assert NO_PLAN not in reasons


def test_without_time_for_any_plan_the_error_says_so() -> None:
    with pytest.raises(
        NoPlanInTimeError, match=r"no plan was found within the time limit of 1 s; allow more time"
    ) as found:
        limited(tiny_job(), 1.0, CountedClock(looks=10))
    # Neither wrong input (2) nor infeasible (3).
    assert found.value.exit_code == 1


def test_incumbents_kept_for_the_time_limit_are_distinct() -> None:
    space = make_space(tiny_job())
    target = target_of(tiny_job())
    kept = _Incumbents(space, target, 24)
    draft = Searched().answer(space, target).drafts[0]
    for _ in range(2):
        kept.record(space, draft)
    assert len(kept.kept) == 1


def test_incumbents_kept_for_the_time_limit_have_replayed_figures_once_known() -> None:
    space = make_space(tiny_job())
    target = target_of(tiny_job())
    kept = _Incumbents(space, target, 24)
    draft = Searched().answer(space, target).drafts[0]
    figures = {figure: 0.5 * value for figure, value in draft.figures.items()}
    for expected in (None, figures, None):
        kept.record(space, replace(draft, expected=expected))
    assert [value for value, _ in kept.kept] == [figures[target.goal]]


def test_a_deadline_that_is_lifted_ends_nothing() -> None:
    deadline = Deadline(now_s=lambda: 2.0, at_s=1.0)
    with pytest.raises(OutOfTimeError):
        deadline.check()
    deadline.lift()
    deadline.check()
