"""The decision: cheapest, balanced and fastest plan, and the price of what is left out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from itertools import pairwise

import pytest

from factories.documents import document as made
from factories.planning import AS_OF, SHALLOW, data, example, make_space, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Choice, CostKind, Decision, Pick, PlanDocument, Status, Subject
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Market
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner import SearchOptions, search
from sailor_cloud.planner.evaluate.assess import Assessor, Shape, shapes_of
from sailor_cloud.planner.explain import decision as decision_module
from sailor_cloud.planner.explain.decision import Deciding, cheaper_nearby, warnings
from sailor_cloud.planner.explain.insisting import near_with
from sailor_cloud.planner.explain.shortage import NO_PLAN, NO_PLAN_YET
from sailor_cloud.planner.improvement.choice import Chosen, first_that_holds
from sailor_cloud.planner.search import problem_of
from sailor_cloud.planner.seeds.homogeneous import homogeneous, homogeneous_at
from sailor_cloud.planner.space.draft import Draft, to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.restrictions import Restriction
from sailor_cloud.simulator import evaluate
from sailor_cloud.units import GIB, pace_text, probability_text, usd_difference, usd_text

ONE_ZONE = "'--restrict one-zone' plans for one zone"
SIZE = {"blocks": 3, "batch": 6, "hidden": 64, "steps": 1000}


def searched(job: Job, **options: object) -> PlanDocument:
    prices, links, times = data()
    asked = SearchOptions(decide=True, **options)
    return search(job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), options=asked)


@pytest.fixture(scope="module")
def told() -> list[Decision]:
    return []


@pytest.fixture(scope="module")
def document(told: list[Decision]) -> PlanDocument:
    return searched(tiny_job(**SIZE), deciding=told.append)


def first_look(job: Job, asked: Pick | None = None) -> Decision:
    """The decision among homogeneous plans alone."""
    space, target = make_space(job), target_of(job)
    deciding = Deciding(space, target, asked=asked)
    deciding.add(homogeneous(space, target))
    decision = deciding.decision(deciding.picks(NORMAL))
    assert decision is not None
    return decision


def test_the_goal_chooses_and_every_choice_contains_its_plan(document: PlanDocument) -> None:
    decision = document.decision
    assert decision is not None
    assert (decision.chosen, decision.asked, decision.complete) == (Pick.FASTEST, None, True)
    assert sorted(pick for choice in decision.choices for pick in choice.picks) == sorted(Pick)
    fastest = decision.choice(Pick.FASTEST)
    assert [choice for choice in decision.choices if choice.chosen] == [fastest]
    assert (fastest.plan, fastest.iteration_s) == (document.plan, document.prediction.iteration_s_replay)
    for cheaper, dearer in pairwise(decision.choices):
        assert cheaper.usd < dearer.usd
        assert cheaper.seconds > dearer.seconds
    for choice in decision.choices:
        assert {offer.id for offer in choice.offers} == {node.offer for node in choice.plan.nodes}
        assert sum(choice.devices.values()) == sum(node.devices for node in choice.plan.nodes)
    assert PlanDocument.from_json(document.to_json()) == document


def test_where_money_is_the_goal_the_fastest_choice_is_about_what_a_search_for_speed_finds() -> None:
    """The search for the cheapest plan does not look for mixed accelerators, which are what is fastest here."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "gpt2-xl"},
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["spot"],
        resources__0__accelerators={"L4-24": 8, "V100-16": 4},
        training={"global_batch_size": 64, "sequence_length": 1024, "precision": "fp16", "steps": 1000},
        constraints={"budget_usd": 300},
        goal="minimize-cost",
    )
    cheap = searched(job).decision
    fast = searched(job.model_copy(update={"goal": Goal.MAXIMIZE_THROUGHPUT})).decision
    assert cheap is not None
    assert fast is not None
    assert cheap.choice(Pick.FASTEST).iteration_s <= 1.05 * fast.choice(Pick.FASTEST).iteration_s
    assert len(cheap.choice(Pick.FASTEST).devices) == 2


def test_choices_are_reported_during_the_search_and_the_goal_gets_no_worse(
    document: PlanDocument, told: list[Decision]
) -> None:
    assert len(told) >= 2
    assert not any(decision.complete for decision in told)
    seconds = [decision.choice(Pick.FASTEST).seconds for decision in (*told, document.decision)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("pick", [Pick.CHEAPEST, Pick.BALANCED])
def test_a_requested_choice_is_the_plan_and_gets_no_bound_of_the_goal(document: PlanDocument, pick: Pick) -> None:
    chosen = searched(tiny_job(**SIZE), choose=pick)
    assert chosen.decision.asked is chosen.decision.chosen is pick
    assert chosen.plan == chosen.decision.choice(pick).plan
    assert chosen.cost.total_usd == pytest.approx(document.decision.choice(pick).usd)
    if chosen.plan != document.plan:
        assert (chosen.status, chosen.optimality_gap, chosen.bound) == (Status.FEASIBLE, None, None)


def test_the_balanced_plan_is_the_one_farthest_below_the_line_between_the_others() -> None:
    job = example("gcp-a100-v100.yaml")
    space, target = make_space(job), target_of(job)
    deciding = Deciding(space, target)
    drafts = homogeneous(space, target)
    deciding.add(drafts)
    decision = deciding.decision(deciding.picks(NORMAL))
    cheap, balanced, fast = (decision.choice(pick) for pick in Pick)

    def below(seconds: float, usd: float) -> float:
        across = (seconds - fast.seconds) / (cheap.seconds - fast.seconds)
        return 1.0 - across - (usd - cheap.usd) / (fast.usd - cheap.usd)

    kept = [draft.foreseen for draft in drafts if target.feasible(draft.foreseen)]
    most = max(below(figures[Figure.DURATION_S], figures[Figure.TOTAL_USD]) for figures in kept)
    assert below(balanced.seconds, balanced.usd) == pytest.approx(most, rel=0.02)
    assert balanced.devices == {"A100-40": 8}


def choice_of(pick: Pick, seconds: float, usd: float, *, chosen: bool = False) -> Choice:
    base = next(iter(first_look(tiny_job()).choices))
    return replace(base, picks=(pick,), chosen=chosen, duration_s=seconds, total_usd=usd)


def test_the_chosen_plan_is_compared_with_the_next_slower_choice() -> None:
    """The cheapest one saves more per share of time, but takes much longer."""
    fastest = choice_of(Pick.FASTEST, 3000.0, 465.45, chosen=True)
    balanced, cheapest = choice_of(Pick.BALANCED, 3252.0, 269.32), choice_of(Pick.CHEAPEST, 6300.0, 27.96)
    (note,) = cheaper_nearby((cheapest, balanced, fastest))
    assert note.startswith("the balanced plan costs 196.13 USD less and is 8.4 % slower;")
    assert list(cheaper_nearby((cheapest, replace(balanced, total_usd=440.0), fastest))) == []


PAIR = (Pick.FASTEST, Pick.BALANCED)


def test_little_time_for_much_money_is_reported() -> None:
    one_zone = {"resources__0__zones": ["us-central1-a"], "resources__0__markets": ["on-demand"]}
    one_zone["constraints"] = {"budget_usd": 500}
    decision = first_look(example("gcp-a100-v100.yaml", **one_zone))
    note = decision.notes[0]
    fastest, balanced = (next(each for each in decision.choices if pick in each.picks) for pick in PAIR)
    less = usd_text(usd_difference(fastest.usd, balanced.usd))
    assert note.startswith(f"the balanced plan costs {less} USD less and is ")
    assert note.endswith(f"{pace_text(balanced.seconds / fastest.seconds)}; '--choose balanced' takes it")
    cheapest = first_look(example("gcp-a100-v100.yaml", goal="minimize-cost", **one_zone))
    assert not any("USD less and is" in note for note in cheapest.notes)


def test_the_cheaper_of_equally_fast_plans_is_chosen() -> None:
    """Without steps preemption costs no time, so spot and on-demand nodes are equally fast."""
    one_zone = {"resources__0__zones": ["us-central1-a"], "training__steps": None, "constraints": {}}
    job = example("gcp-a100-v100.yaml", **one_zone)
    space, target = make_space(job), target_of(job)
    deciding = Deciding(space, target)
    deciding.add(homogeneous(space, target))

    def markets(chosen: Chosen) -> set[Market]:
        return {space.pools[slot.pool].offer.market for part in chosen.draft.pipelines for slot in part.slots}

    fastest = deciding.picks(NORMAL)[Pick.FASTEST]
    assert markets(fastest) == {Market.SPOT}
    spot = next(slot.pool for part in fastest.draft.pipelines for slot in part.slots)
    offer = space.pools[spot].offer
    (other,) = [
        number
        for number, pool in enumerate(space.pools)
        if pool.offer.market is Market.ON_DEMAND
        and (pool.offer.instance_type, pool.devices) == (offer.instance_type, space.pools[spot].devices)
    ]
    pipelines = [
        part._replace(slots=tuple(slot._replace(pool=other) for slot in part.slots)) for part in fastest.draft.pipelines
    ]
    dear = Assessor(space, target).draft(shapes_of(replace(fastest.draft, pipelines=tuple(pipelines))))
    deciding.add([dear])
    by_goal = first_that_holds(space, target, [dear])
    assert markets(by_goal) == {Market.ON_DEMAND}
    assert markets(deciding.picks(NORMAL, by_goal)[Pick.FASTEST]) == {Market.SPOT}


def test_the_plan_is_every_choice_where_no_other_keeps_the_limits() -> None:
    job = example("quickstart.yaml")
    space, target = make_space(job), target_of(job)
    chosen = first_that_holds(space, target, homogeneous(space, target))
    picks = Deciding(space, target).picks(NORMAL, chosen)
    assert set(picks) == set(Pick)
    assert all(pick.draft is chosen.draft for pick in picks.values())


def test_a_cheaper_plan_with_less_throughput_is_not_chosen_because_its_run_ends_as_soon() -> None:
    """A run of three steps mostly starts and stops nodes: an iteration that takes 0.7 % longer hardly delays it."""
    job = example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"], training__steps=3, constraints={})
    space, target = make_space(job), target_of(job)

    def seconds(draft: Draft) -> float:
        return draft.foreseen[Figure.ITERATION_S]

    def on(draft: Draft, market: Market) -> bool:
        return {space.pools[slot.pool].offer.market for part in draft.pipelines for slot in part.slots} == {market}

    drafts = sorted(homogeneous(space, target), key=seconds)
    fast = next(draft for draft in drafts if on(draft, Market.ON_DEMAND))
    cheap = next(draft for draft in drafts if on(draft, Market.SPOT) and seconds(draft) > seconds(fast))
    assert cheap.foreseen[Figure.DURATION_S] <= fast.foreseen[Figure.DURATION_S] * 1.0005
    deciding = Deciding(space, target)
    deciding.add([fast, cheap])
    by_goal = first_that_holds(space, target, [fast])
    assert deciding.picks(NORMAL, by_goal)[Pick.FASTEST].draft == fast


def test_no_point_of_the_frontier_is_cheaper_than_the_cheapest_choice() -> None:
    document = searched(tiny_job(**SIZE), frontier=True)
    assert len(document.frontier) > 1
    least = min(point.total_usd for point in document.frontier)
    assert document.decision.choice(Pick.CHEAPEST).usd <= least * (1.0 + 1e-3)


def test_everything_that_the_job_names_and_the_plan_leaves_out_has_the_price_of_insisting() -> None:
    decision = first_look(example("llama3-8b-two-clouds.yaml"))
    rows = {(row.subject, row.name): row for row in decision.left_out}
    assert set(rows) == {
        (Subject.ACCELERATOR, "A100-40"),
        (Subject.ACCELERATOR, "A100-80"),
        (Subject.ZONE, "us-central1-a"),
        (Subject.ZONE, "us-central1-c"),
        (Subject.ZONE, "use1-az1"),
        (Subject.MARKET, "on-demand"),
        (Subject.CLOUD, "gcp"),
    }
    for row in decision.left_out:
        assert row.name in row.runs_on or row.subject is Subject.CLOUD
        assert row.total_usd > decision.choice(Pick.CHEAPEST).usd
        [more] = re.findall(r"\+([\d.]+) USD", row.why)
        # Both amounts may be rounded before they are compared.
        assert float(more) == pytest.approx(row.total_usd - decision.choice(Pick.CHEAPEST).usd, abs=0.0101)


@pytest.mark.parametrize("pick", [Pick.FASTEST, Pick.BALANCED])
def test_insisting_shows_the_plan_that_the_same_choice_would_take(pick: Pick) -> None:
    """The fastest one; or the one with the least sum of time and money, each relative to the chosen plan's."""
    job = example(
        "seven-kinds.yaml",
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["spot"],
        resources__0__accelerators={"A100-40": 8, "H100-80": 8, "L4-24": 8, "V100-16": 16},
        resources__1__zones=["use1-az1"],
        resources__1__accelerators={"A10G-24": 16},
    )
    space, decision = make_space(job), first_look(job, pick)
    chosen = decision.choice(pick)
    plans = [to_plan(space, draft) for draft in homogeneous(space, target_of(job))]
    kinds = {pool.offer.id: pool.accelerator.name for pool in space.pools}
    rows = [row for row in decision.left_out if row.subject is Subject.ACCELERATOR]
    assert len(rows) > 2

    def value(iteration_s: float, usd: float) -> float:
        return iteration_s / chosen.iteration_s + (usd / chosen.usd if pick is Pick.BALANCED else 0.0)

    for row in rows:
        uses = [plan for plan in plans if row.name in {kinds[node.offer] for node in plan.nodes}]
        kept = [
            value(one.prediction.iteration_s_replay, one.cost.total_usd)
            for one in (evaluate(plan, space.scenario) for plan in uses)
            if one.fits and one.cost.total_usd <= job.constraints.budget_usd
        ]
        assert kept
        assert value(row.iteration_s, row.total_usd) <= 1.01 * min(kept)


def test_asking_for_a_choice_or_for_the_frontier_shows_the_same_choices() -> None:
    job = example(
        "gcp-a100-v100.yaml",
        model=SHALLOW,
        training__max_zero_stage=0,
        training__global_batch_size=128,
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["spot"],
        resources__0__accelerators={"A100-40": 4, "V100-16": 8},
    )
    plain = searched(job).decision.choices
    assert len(plain) == 3
    asked = searched(job, choose=Pick.BALANCED)
    balanced = asked.decision.choice(Pick.BALANCED)
    assert asked.plan == balanced.plan
    assert [(each.picks, each.seconds, each.usd) for each in asked.decision.choices] == [
        (each.picks, each.seconds, each.usd) for each in plain
    ]
    wide = searched(job, frontier=True)
    for pick in Pick:
        before, after = (next(each for each in those if pick in each.picks) for those in (plain, wide.decision.choices))
        assert after.seconds <= before.seconds
        assert after.usd <= before.usd
        better = [
            point
            for point in wide.frontier
            if point.duration_s < after.seconds * 0.998 and point.total_usd < after.usd * 0.998
        ]
        assert not better


def test_a_decision_warns_of_stale_prices_egress_and_memory_within_its_error() -> None:
    plan = made()
    assert plan.cost is not None
    assert plan.prediction is not None
    fresh, old = plan.cost.lines[0], replace(plan.cost.lines[0], stale=True, price_as_of=date(2026, 1, 20))
    assert list(warnings(plan.prediction, plan.cost, date(2026, 11, 23))) == []
    (stale,) = warnings(plan.prediction, replace(plan.cost, lines=Rows((fresh, old))), date(2026, 11, 23))
    assert stale.startswith(
        f"prices are up to 307 days old and may have risen: {usd_text(plan.cost.worst_case_usd)} USD at worst"
    )
    assert stale.endswith("'up' on a cloud refuses stale prices")
    for share, told in ((0.4, 0), (0.87, 1)):
        egress = replace(fresh, kind=CostKind.EGRESS, usd=2.0 * share / (1.0 - share))
        others = replace(fresh, kind=CostKind.COMPUTE, usd=2.0)
        found = list(warnings(plan.prediction, replace(plan.cost, lines=Rows((others, egress))), date(2026, 11, 23)))
        assert found == [f"{100 * share:.0f} % of the money is egress between zones; {ONE_ZONE}"] * told
    stage = replace(plan.prediction.memory[0], limit_bytes=16 * GIB)
    for share, measured, told in ((0.9, False, 0), (0.95, False, 1), (0.95, True, 0)):
        needed = int(share * stage.limit_bytes)
        full = replace(stage, parts={"weights": needed, "allocator": 5}, total_bytes=needed + 5, measured=measured)
        found = list(warnings(replace(plan.prediction, memory=(full,)), plan.cost, date(2026, 11, 23)))
        assert [note.startswith("stage 0 may run out of memory: ") for note in found] == [True] * told
        assert all(f"an estimated {needed / GIB:.1f} of 16.0 GiB (" in note for note in found)
        assert all("GiB with the allocator's cache)" in note for note in found)


def test_an_unusable_resource_says_why() -> None:
    job = example("llama3-8b-two-clouds.yaml", resources__0__accelerators={"A100-40": 16, "T4-16": 2})
    prices, links, times = data()
    problem = problem_of(job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF))
    deciding = Deciding(problem.space, problem.target, problem.rejected)
    deciding.add(homogeneous(problem.space, problem.target))
    picks = deciding.picks(NORMAL)
    row = deciding.insisted(Subject.ACCELERATOR, "T4-16", picks[Pick.CHEAPEST])
    assert row.total_usd is None
    assert row.why.startswith("has no bf16; it runs ")


def test_while_the_search_continues_what_no_plan_uses_has_none_yet() -> None:
    space, target = make_space(tiny_job()), target_of(tiny_job())
    chosen = first_that_holds(space, target, [homogeneous_at(space, target)[0]])
    assert chosen is not None
    deciding = Deciding(space, target)
    deciding.add([chosen.draft])
    used = {space.pools[slot.pool].accelerator.name for part in chosen.draft.pipelines for slot in part.slots}
    (other,) = {"CPU-fast", "CPU-slow"} - used
    rows = [deciding.insisted(Subject.ACCELERATOR, other, chosen, complete=done) for done in (False, True)]
    assert [row.why for row in rows] == [NO_PLAN_YET, NO_PLAN]


def test_insisting_on_what_breaks_the_budget_names_the_limit() -> None:
    job = example("gcp-a100-v100.yaml", constraints={"budget_usd": 60, "deadline": "24h"})
    row = next(row for row in first_look(job).left_out if row.name == "V100-16")
    assert not row.keeps_limits
    assert row.why.endswith("; no plan found keeps the budget")


def test_homogeneous_plans_are_those_that_the_simulator_finds() -> None:
    """Their figures are those of the closed form for the very plan, within what it and the replay differ."""
    job = example("gcp-a100-v100.yaml")
    space = make_space(job)
    drafts = homogeneous(space, target_of(job))
    assert len({draft.order() for draft in drafts}) > 50
    for draft in drafts[::20]:
        found = evaluate(to_plan(space, draft), space.scenario)
        assert found.fits
        assert found.prediction.iteration_s_replay == pytest.approx(draft.figures[Figure.ITERATION_S], rel=0.1)


def test_the_first_screen_needs_few_homogeneous_plans_of_every_zone_and_accelerator() -> None:
    job = example("seven-kinds.yaml")
    space = make_space(job)
    first = homogeneous(space, target_of(job), first=True)
    again = homogeneous(space, target_of(job), first=True)
    every = homogeneous(space, target_of(job))
    assert len({draft.order() for draft in first}) < len({draft.order() for draft in every}) / 2
    assert {draft.order() for draft in first} < {draft.order() for draft in every}
    assert [draft.order() for draft in again] == [draft.order() for draft in first]

    def used(drafts: Sequence[Draft]) -> set[tuple[str, str]]:
        offers = [space.pools[part.slots[0].pool].offer for draft in drafts for part in draft.pipelines]
        return {(offer.accelerator, offer.zone) for offer in offers}

    assert used(first) == used(every)


def test_homogeneous_plans_keep_all_reduces_inside_nodes_too() -> None:
    """Each node holds one stage of all pipelines, so that only activations leave it."""
    accelerators = {"H100-80": 16}
    job = example(
        "llama3-8b-two-clouds.yaml", resources__0__accelerators=accelerators, resources__1__accelerators=accelerators
    )
    space = make_space(job).at(1)
    stages_of = [
        [{slot.instance for slot in slots} for slots in zip(*(part.slots for part in draft.pipelines), strict=True)]
        for draft in homogeneous_at(space, target_of(job))
        if len(draft.pipelines) > 1 and len({slot.instance for slot in draft.pipelines[0].slots}) > 1
    ]
    assert any(all(len(nodes) == 1 for nodes in stages) for stages in stages_of)


def test_choices_keep_to_the_space_that_was_asked_for() -> None:
    document = searched(tiny_job(**SIZE), restrictions=(Restriction.ONE_ACCELERATOR, Restriction.ONE_ZONE))
    for choice in document.decision.choices:
        assert len(choice.devices) == len(choice.zones) == 1


def test_a_plan_as_probable_as_asked_is_chosen_from(document: PlanDocument) -> None:
    least = document.decision.choice(Pick.CHEAPEST).usd
    tight = tiny_job(**SIZE, constraints={"budget_usd": least * 1.2, "probability": 0.9})
    document = searched(tight)
    for choice in document.decision.choices:
        assert choice.within_limits >= 0.9


def test_a_plan_that_fills_the_budget_says_so_and_names_what_leaves_a_margin(document: PlanDocument) -> None:
    most = document.decision.choice(Pick.FASTEST).usd
    document = searched(tiny_job(**SIZE, constraints={"budget_usd": most * 1.0001}))
    chosen = document.decision.choice(Pick.FASTEST)
    assert chosen.within_limits <= chosen.within_budget < 0.9
    (note,) = [note for note in document.decision.notes if "uses most of the budget" in note]
    assert f"with a chance of {probability_text(1.0 - chosen.within_limits)} the run is stopped before" in note
    assert "'probability: 0.9' under 'constraints'" in note
    safer = [choice for choice in document.decision.choices if choice.within_limits >= 0.9]
    assert ("leaves a margin" in note) == bool(safer)

    roomy = searched(tiny_job(**SIZE, constraints={"budget_usd": most * 2.0}))
    assert not any("is stopped before" in note for note in roomy.decision.notes)


def test_a_chosen_plan_is_tried_in_the_zone_and_the_market_that_it_leaves_out() -> None:
    """All known plans are in spot of one zone; another zone of its region sells the same at almost one price."""
    job = example("gcp-a100-v100.yaml", constraints={})
    space, target = make_space(job), target_of(job)
    deciding = Deciding(space, target)
    offers = [pool.offer for pool in space.pools]
    there = {n for n, each in enumerate(offers) if (each.zone, each.market) == ("us-central1-a", Market.SPOT)}
    every = homogeneous(space, target)
    deciding.add(each for each in every if {slot.pool for part in each.pipelines for slot in part.slots} <= there)
    chosen = deciding.picks(NORMAL)[Pick.FASTEST]
    deciding.look_near(chosen)
    rows = {row.name: row for row in deciding.prices_of_insisting(chosen)}
    seconds, usd = chosen.evaluation.prediction.iteration_s_replay, chosen.evaluation.cost.total_usd
    assert rows["us-central1-b"].iteration_s == pytest.approx(seconds, rel=0.02)
    assert rows["us-central1-b"].total_usd == pytest.approx(usd, rel=0.02)
    assert rows["on-demand"].iteration_s == pytest.approx(seconds, rel=0.02)
    assert rows["on-demand"].total_usd > 1.5 * usd
    assert "spot" not in rows["on-demand"].runs_on


def test_a_goal_of_speed_shows_nearly_the_cheapest_plan_that_a_goal_of_money_finds() -> None:
    few = {"resources__0__zones": ["us-central1-a"], "resources__0__accelerators": {"A100-40": 4, "V100-16": 4}}
    prices = []
    for goal in ("maximize-throughput", "minimize-cost"):
        decision = searched(example("gcp-a100-v100.yaml", goal=goal, **few)).decision
        prices.append(next(choice.total_usd for choice in decision.choices if Pick.CHEAPEST in choice.picks))
    assert prices[0] == pytest.approx(prices[1], rel=5e-3)


def test_insisting_is_no_worse_than_another_choice() -> None:
    """Slow homogeneous plans are known; the fastest plan is only known as a choice."""
    job = example("gcp-a100-v100.yaml", constraints={}, resources__0__zones=["us-central1-a"])
    space, target = make_space(job), target_of(job)
    every = sorted(homogeneous(space, target), key=lambda draft: draft.figures[Figure.ITERATION_S])
    v100s = [
        draft
        for draft in every
        if {space.pools[s.pool].accelerator.name for s in draft.pipelines[0].slots} == {"V100-16"}
    ]
    a100 = next(draft for draft in every if draft not in v100s)
    choice, chosen = (first_that_holds(space, target, [draft]) for draft in (v100s[0], a100))
    deciding = Deciding(space, target)
    deciding.add([a100, v100s[-1]])
    rows = [deciding.insisted(Subject.ACCELERATOR, "V100-16", chosen, others) for others in ([], [chosen, choice])]
    assert rows[0].iteration_s > 1.5 * rows[1].iteration_s
    assert rows[1].iteration_s == choice.evaluation.prediction.iteration_s_replay


def test_insisting_on_a_market_means_all_nodes_and_not_some() -> None:
    rows = [row for row in first_look(example("seven-kinds.yaml")).left_out if row.subject is Subject.MARKET]
    assert [row.name for row in rows] == ["on-demand"]
    assert "spot" not in rows[0].runs_on


def test_nodes_of_two_zones_become_as_many_nodes_of_a_third_one() -> None:
    job = example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a", "us-central1-b", "us-central1-c"])
    space, target = make_space(job), target_of(job)
    offers = [pool.offer for pool in space.pools]
    pools = [
        next(n for n, each in enumerate(offers) if (each.zone, each.accelerator) == (zone, "V100-16"))
        for zone in ("us-central1-a", "us-central1-b")
    ]
    shapes = [Shape(slots=(Slot(pool, 0, 1),), cut=(0, space.layers), microbatch_size=1) for pool in pools]
    draft = Assessor(space, target).draft(shapes)
    (found,) = near_with(space, target, draft, Subject.ZONE, "us-central1-c")
    assert len({slot[:2] for part in found.pipelines for slot in part.slots}) == 2
    assert {offers[slot.pool].zone for part in found.pipelines for slot in part.slots} == {"us-central1-c"}


def test_a_plan_is_tried_in_each_zone_of_another_cloud_that_sells_nodes_with_its_devices() -> None:
    job = example("llama3-8b-two-clouds.yaml")
    space, target = make_space(job), target_of(job)
    offers = [pool.offer for pool in space.pools]

    def on_nodes(count: int) -> Draft:
        there = ("use1-az2", Market.SPOT, "H100-80", count)
        pool = next(n for n, o in enumerate(offers) if (o.zone, o.market, o.accelerator, o.accelerator_count) == there)
        shape = Shape(slots=(Slot(pool, 0, 4),), cut=(0, space.layers), microbatch_size=1)
        draft = Assessor(space, target).draft([shape])
        assert draft is not None
        return draft

    found = list(near_with(space, target, on_nodes(8), Subject.CLOUD, "gcp"))
    used = [{offers[slot.pool] for part in each.pipelines for slot in part.slots} for each in found]
    assert [{offer.zone for offer in each} for each in used] == [{"us-central1-a"}, {"us-central1-c"}]
    assert {(o.accelerator, o.accelerator_count, o.market) for each in used for o in each} == {
        ("H100-80", 8, Market.SPOT)
    }


def test_an_accelerator_that_is_left_out_may_replace_some_nodes_of_the_plan() -> None:
    """A plan on T4 alone is many times slower than one in which a few T4 replace faster devices."""
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 16, "V100-16": 16, "T4-16": 16})
    space, target = make_space(job), target_of(job)
    uses = {"A100-40", "V100-16"}
    pools = {name: next(n for n, p in enumerate(space.pools) if p.accelerator.name == name) for name in uses}
    shapes = [
        Shape(slots=(Slot(pools[name], 0, 1),), cut=(0, space.layers), microbatch_size=1) for name in sorted(uses)
    ]
    draft = Assessor(space, target).draft(shapes)
    found = list(near_with(space, target, draft, Subject.ACCELERATOR, "T4-16"))
    kinds = [
        {space.pools[slot.pool].accelerator.name for part in each.pipelines for slot in part.slots} for each in found
    ]
    assert {"T4-16", "A100-40"} in kinds
    assert all("T4-16" in each for each in kinds)


def test_stalls_for_checkpoints_do_not_make_another_choice_cheaper_than_the_cheapest() -> None:
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "llama-3-8b"},
        goal="minimize-time",
        constraints={},
        training={"global_batch_size": 64, "sequence_length": 1024, "steps": 3000, "precision": "bf16"},
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["on-demand"],
        resources__0__accelerators={"A100-80": 8},
        checkpoint={"every": "1m"},
    )
    choices = searched(job).decision.choices
    assert Pick.CHEAPEST in min(choices, key=lambda choice: choice.usd).picks


def test_plans_on_nodes_without_a_price_are_compared_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(**SIZE)
    space, target = make_space(job), target_of(job)
    found = [first_that_holds(space, target, [draft]) for draft in homogeneous(space, target)]
    first, *others = [one for one in found if one is not None]
    monkeypatch.setattr(
        decision_module, "_figures", lambda chosen: (chosen.evaluation.prediction.iteration_s_replay, 0.0)
    )
    assert not all(Deciding(space, target)._same(first, other) for other in others)
