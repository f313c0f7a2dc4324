"""The frontier: what trades money for time, the steps that lead from one such plan to others, the figures shown."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from factories.planning import AS_OF, data, example, make_space, tiny_job
from sailor_cloud import planner
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import FrontierPoint
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.evaluate.pareto import OfNodes, behind, figures, near, run_seconds, unbeaten
from sailor_cloud.planner.explain.frontier import MOST_POINTS, frontier, promising, traded
from sailor_cloud.planner.explain.frontier_steps import Explorer
from sailor_cloud.planner.improvement import Neighbourhood
from sailor_cloud.planner.improvement.choice import first_that_holds
from sailor_cloud.planner.space.draft import to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.simulator import evaluate

SIZE = {"blocks": 2, "batch": 6, "accelerators": {"CPU-fast": 2, "CPU-slow": 1}, "zones": ("local-a",)}
SECONDS, USD = np.array([4.0, 1.0, 2.0, 2.1, 3.0]), np.array([1.0, 9.0, 5.0, 5.2, 4.999])


@cache
def exhausted():
    space = make_space(tiny_job(**SIZE))
    target = target_of(space.scenario.job)
    return space, target, exhaust(space, target, small_layouts(space), keep=1)


def test_plans_are_unbeaten_where_no_other_is_faster_and_cheaper():
    assert unbeaten(SECONDS, USD) == [1, 2, 4, 0]
    assert unbeaten(SECONDS, USD, least=0.001) == [1, 2, 0]


def test_plans_are_behind_by_what_another_one_is_faster_and_cheaper():
    front = unbeaten(SECONDS, USD)
    assert behind(SECONDS, USD, front).tolist() == pytest.approx([1.0, 1.0, 1.0, 5.2 / 5.0, 1.0])
    assert near(SECONDS, USD, front, 1.05).all()
    assert near(SECONDS, USD, front, 1.03).tolist() == [True, True, True, False, True]


def test_the_frontier_has_no_point_that_another_one_beats_by_the_replay():
    space, target, every = exhausted()
    chosen = first_that_holds(space, target, every.drafts)
    points = frontier(space, every.others, chosen, NORMAL)
    cheapest = [point for point in points if point.cheapest]
    assert len(cheapest) > 2
    for faster, slower in pairwise(cheapest):
        assert faster.seconds < slower.seconds
        assert faster.total_usd > slower.total_usd * 1.001
    for draft in promising(every.others):
        shown = evaluate(to_plan(space, draft), space.scenario)
        seconds, usd = shown.prediction.duration_s, shown.cost.total_usd
        assert any(point.seconds <= seconds * 1.002 and point.total_usd <= usd * 1.002 for point in points)


def made_up(count, *, slower, cheaper, cheapest):
    return [
        FrontierPoint(
            iteration_s=slower**number,
            throughput_iterations_per_s=slower**-number,
            usd_per_hour=1.0,
            usd_per_iteration=100.0 * (cheaper**-number if cheapest else 1.0 + 0.1 * number),
            total_usd=None,
            devices={},
            zones=(),
            nodes_usd_per_hour=50.0 * cheaper**-number * (2.0 if cheapest else 1.0),
        )
        for number in range(count)
    ]


def test_points_that_are_near_their_neighbours_leave_no_stretch_without_any():
    chosen, *others = made_up(12, slower=1.019, cheaper=1.03, cheapest=False)
    seconds = [point.iteration_s for point in traded(chosen, others)]
    assert seconds[-1] == others[-1].iteration_s
    assert all(later <= earlier * 1.04 for earlier, later in pairwise(seconds))
    assert all(later > earlier * 1.02 for earlier, later in pairwise(seconds[1:]))


def test_too_many_points_are_thinned_by_the_cost_of_the_run_and_the_ends_stay():
    chosen, *others = made_up(41, slower=1.03, cheaper=1.03, cheapest=True)
    dearer = [
        replace(point, iteration_s=1.001 * point.iteration_s)
        for point in made_up(60, slower=1.04, cheaper=1.04, cheapest=False)
    ]
    points = traded(chosen, [*others, *dearer])
    assert len(points) == MOST_POINTS
    assert points[0] == replace(chosen, cheapest=True)
    cheapest = [point.usd_per_iteration for point in points if point.cheapest]
    assert cheapest[-1] == min(point.usd_per_iteration for point in (*others, *dearer))
    assert sum(not point.cheapest for point in points) == 1


def test_points_are_compared_by_the_time_of_the_run_where_its_steps_are_known():
    """A longer start-up makes the plan with the shorter iteration slower and more expensive than another one."""
    base = made_up(1, slower=1.0, cheaper=1.0, cheapest=True)[0]
    chosen = replace(base, iteration_s=7.59, duration_s=4568.0, total_usd=24.84, nodes_usd_per_hour=19.27)
    faster = replace(base, iteration_s=3.95, duration_s=2639.0, total_usd=28.46, nodes_usd_per_hour=38.54)
    beaten = [
        replace(faster, iteration_s=3.81, duration_s=2657.0, total_usd=28.64),
        replace(chosen, iteration_s=7.49, duration_s=4681.0, total_usd=25.45),
    ]
    assert [point.total_usd for point in traded(chosen, [faster, *beaten])] == [28.46, 24.84]
    short = [replace(point, duration_s=None, total_usd=None) for point in (chosen, faster, *beaten)]
    assert {point.iteration_s for point in traded(short[0], short[1:])} >= {3.81}


def test_promising_drafts_have_no_cheaper_rival_expected_to_be_as_fast():
    space, _, every = exhausted()
    rate_of = OfNodes(space)
    found = promising(every.others, rate_of)
    rates = {rate_of(draft) for draft in found}
    assert rates >= {rate_of(draft) for draft in every.others if beaten_by_none(draft, every.others, rate_of)}
    assert len(rates) > 1


def beaten_by_none(draft, others, rate_of):
    seconds, rate = run_seconds(draft), rate_of(draft)
    return not [
        other for other in others if rate_of(other) < rate * (1 - 1e-3) and run_seconds(other) <= seconds * (1 + 1e-3)
    ]


@pytest.mark.slow
def test_two_zones_of_two_accelerators_have_at_least_fifteen_points_each_beaten_by_none():
    prices, links, times = data()
    document = planner.search(
        example("gcp-a100-v100.yaml", resources__0__markets=["spot"], training__max_zero_stage=0),
        catalog=prices,
        network=links,
        profiles=times,
        clock=FixedClock(AS_OF),
        options=planner.SearchOptions(frontier=True, decide=True),
    )
    points = document.frontier
    kept = [point for point in points if point.total_usd <= document.constraints.budget_usd]
    choices = document.decision.choices
    # The goal is throughput; of equal iterations, the cheaper run is chosen.
    assert min(choice.iteration_s for choice in choices) <= min(point.iteration_s for point in kept) * 1.001
    assert min(choice.total_usd for choice in choices) <= min(point.total_usd for point in kept) * 1.001
    assert len(points) >= 15
    assert {point.cheapest for point in points} == {True, False}
    for point in points:
        money = "total_usd" if point.cheapest else "nodes_usd_per_hour"
        assert not [
            rival
            for rival in points
            if rival is not point and rival.seconds <= point.seconds and getattr(rival, money) <= getattr(point, money)
        ]


def test_the_chosen_plan_is_on_the_frontier_with_its_reported_figures():
    space, target, every = exhausted()
    chosen = first_that_holds(space, target, every.drafts)
    shown = chosen.evaluation
    fastest = frontier(space, every.others, chosen, NORMAL)[0]
    assert fastest.iteration_s == pytest.approx(shown.prediction.iteration_s_replay, rel=1e-3)
    assert fastest.total_usd == pytest.approx(shown.cost.total_usd, rel=1e-3)


def test_steps_from_the_fastest_plan_lead_to_those_on_fewer_nodes_of_the_same_kind():
    space, target, every = exhausted()
    begun = every.drafts[0]
    pools = {slot.pool for part in begun.pipelines for slot in part.slots}
    alike = [draft for draft in every.others if pools == {slot.pool for part in draft.pipelines for slot in part.slots}]
    found = Explorer(space, target, NORMAL).run([begun])
    seconds, usd = figures([begun, *found])
    wanted = unbeaten(*figures(alike))
    assert len(wanted) > 1
    for index in wanted:
        (least_s,), (least_usd,) = figures([alike[index]])
        assert any((seconds <= least_s * (1 + 1e-9)) & (usd <= least_usd * (1 + 1e-9)))


def test_no_step_leads_to_more_nodes_than_the_job_allows():
    _, target, every = exhausted()
    narrow = make_space(tiny_job(**SIZE, constraints={"max_nodes": 1}))
    least = min(every.others, key=lambda draft: (draft.figures[Figure.NODES], draft.order()))
    found = Explorer(narrow, target, NORMAL).run([replace(least, figures={**least.figures, Figure.TOTAL_USD: 1e9})])
    assert found
    assert all(draft.figures[Figure.NODES] == 1 for draft in found)


def shapes_around(around, draft):
    return [neighbour.shapes for neighbour in around.every(draft)]


def test_equal_pipelines_become_one_of_twice_the_stages_and_the_other_way_round():
    space, _, every = exhausted()
    around = Neighbourhood(space)
    pair = next(
        draft
        for draft in every.others
        if len(draft.pipelines) == 2
        and len({(part.cut, part.microbatch_size, part.slots[0].pool) for part in draft.pipelines}) == 1
        and len(draft.pipelines[0].slots) == 1
    )
    joined = [plan for plan in shapes_around(around, pair) if len(plan) == 1 and len(plan[0].slots) == 2]
    assert {plan[0].microbatch_size for plan in joined} == {
        pair.pipelines[0].microbatch_size,
        2 * pair.pipelines[0].microbatch_size,
    }
    slots = tuple(slot for part in pair.pipelines for slot in part.slots)
    long = pair.pipelines[0]._replace(slots=slots, cut=joined[0][0].cut)
    every = [plan for plan in shapes_around(around, replace(pair, pipelines=(long,))) if len(plan) == 2]
    halves = [plan for plan in every if {len(shape.slots) for shape in plan} == {1}]
    assert halves
    assert all(shape.cut == (0, space.layers) for plan in halves for shape in plan)
