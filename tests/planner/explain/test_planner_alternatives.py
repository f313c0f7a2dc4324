"""What stands beside the plan: smaller spaces, other kinds, the frontier, explanations, time limits."""

from __future__ import annotations

import pytest

from factories.planning import AS_OF, data, make_space, plan, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.planner import SearchOptions, search
from sailor_cloud.planner.explain.alternatives import Alternatives
from sailor_cloud.planner.explaining import reasons, ruled_out
from sailor_cloud.planner.improvement.choice import first_that_holds
from sailor_cloud.planner.marginal import Gain, gains
from sailor_cloud.planner.search import problem_of
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.planner.space.restrictions import Restriction

SIZE = {"blocks": 3, "batch": 6, "hidden": 64}


def searched(job, **options):
    prices, links, times = data()
    return search(
        job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), options=SearchOptions(**options)
    )


@pytest.fixture(scope="module")
def document():
    return searched(tiny_job(**SIZE), alternatives=True, frontier=True, top=3)


def test_the_best_plan_of_each_smaller_space_is_an_alternative(document):
    offers = {offer.id: offer for offer in document.inputs.offers}
    assert len({offers[node.offer].zone for node in document.plan.nodes}) == 2
    alone = next(other for other in document.alternatives if other.restrictions == ("one-zone",))
    assert alone.label == "one zone: local-a"
    assert alone.iteration_s == pytest.approx(
        plan(tiny_job(**SIZE), Restriction.ONE_ZONE).prediction.iteration_s_replay, rel=1e-9
    )
    assert alone.throughput_iterations_per_s <= document.prediction.throughput_iterations_per_s * (1 + 1e-9)


def test_a_better_plan_of_a_smaller_space_is_chosen_and_the_previous_one_stays_an_alternative_outside_it():
    space, target = make_space(tiny_job(**SIZE)), target_of(tiny_job(**SIZE))
    answer, best = Searched().best(space, target)
    zone = {space.pools[slot.pool].offer.zone for part in best.draft.pipelines for slot in part.slots}
    assert len(zone) == 2
    worst = first_that_holds(space, target, sorted(answer.others, key=Draft.order, reverse=True))
    alternatives = Alternatives(space, target, worst.draft, NORMAL)
    alternatives.restricted([(Restriction.ONE_ZONE,), (Restriction.ONE_ACCELERATOR,)])
    before = {alternative.label: alternative.iteration_s for alternative in alternatives.found}
    chosen = alternatives.or_better(worst)
    assert alternatives.or_better(best) is best
    assert chosen.evaluation.prediction.iteration_s_replay == min(before.values())
    assert alternatives.replace_chosen(chosen, worst) is chosen
    assert alternatives.chosen is chosen.draft
    # The first one stood in one zone and on one accelerator; the better one has another accelerator in both zones.
    assert set(before) == {"all CPU-fast"}
    assert {alternative.label for alternative in alternatives.found} == {"all CPU-slow", "one zone: local-b"}
    slow = worst.evaluation.prediction.iteration_s_replay
    assert {alternative.iteration_s for alternative in alternatives.found} == {slow}


def test_alternatives_differ_in_kind_and_survive_the_file(document):
    labels = [other.label for other in document.alternatives]
    assert len(set(labels)) == len(labels) >= 3
    assert PlanDocument.from_json(document.to_json()) == document


def test_the_frontier_begins_with_the_fastest_plan_and_falls_in_price(document):
    assert document.frontier[0].iteration_s <= document.prediction.iteration_s * (1 + 1e-9)
    usd = [point.total_usd for point in document.frontier if point.cheapest]
    assert usd == sorted(usd, reverse=True)


def test_the_completed_share_is_reported_and_never_falls():
    for job in (tiny_job(**SIZE), tiny_job(**SIZE, constraints={"budget_usd": 1e-6, "deadline": "1h"})):
        shares: list[float] = []
        searched(job, alternatives=True, frontier=True, progress=shares.append)
        assert len(set(shares)) > 10
        assert shares == sorted(shares)
        assert 0.0 <= shares[0] <= shares[-1] <= 1.0


@pytest.fixture(scope="module")
def plain():
    return searched(tiny_job(**SIZE))


def test_kinds_that_were_not_requested_are_not_searched(plain):
    assert plain.alternatives == plain.frontier == ()


def test_a_search_with_a_time_limit_never_calls_its_plan_optimal(plain):
    assert plain.status is Status.OPTIMAL
    assert searched(tiny_job(**SIZE), time_limit_s=60.0).status is Status.FEASIBLE


def test_an_explanation_names_limits_grounds_and_gains():
    prices, links, times = data()
    known = {"catalog": prices, "network": links, "profiles": times, "clock": FixedClock(AS_OF)}
    job = tiny_job(**SIZE, constraints={"budget_usd": 1.0}, zones=("local-a",))
    document = search(job, options=SearchOptions(alternatives=True), **known)
    told = reasons(document)
    assert any("all-reduces of gradients" in line for line in told)
    assert any(line.startswith("budget: ") for line in told)
    assert ruled_out(problem_of(job, **known), document) == ()

    came: list[Gain] = []
    found = {
        gain.change: gain
        for gain in gains(job, document, prices, lambda changed: problem_of(changed, **known), found=came.append)
    }
    assert came == list(found.values())
    assert found["10 % more budget"].is_nothing
    assert found["10 % more budget"].text == "nothing"
    more = found["1 more CPU-fast per zone"]
    assert more.after > more.before
    assert more.text.endswith("% better")
    assert "zone local-b as well" in found
