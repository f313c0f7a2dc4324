"""What a run does about a lost node is decided by figures alone: each option wins where its figures are best."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from factories.plans import node, pipeline, plan, stage
from factories.quick_search import PRICE, SPEED, QuickSearch, job, search
from sailor_cloud.launch.recovery.growth import LEAST_GAIN_S
from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.replan import Decision, Policy, Situation, decide, growth, same_shape
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Provider, Terms
from sailor_cloud.model.plan import PipelineSchedule

A, B = "us-central1-a", "us-central1-b"
STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A run on two A100s, of which `kept` are left; what else there is, V100s in another zone, has its price.

    An iteration takes 6.5 s on both A100s, 12.5 s on one. Nodes need 420 s to start.
    """

    kept: int = 1
    wait_s: float | None = None
    elsewhere_usd_per_hour: float = PRICE["V100-16"]
    elsewhere: int = 0
    goal: Goal = Goal.MINIMIZE_TIME
    usd: float | None = None
    seconds: float | None = None
    steps: int = STEPS
    choose: Pick | None = None

    def situation(self) -> tuple[Situation, QuickSearch]:
        own = {(A, "A100-40"): 2}
        document = search(_job(own))
        assert document.plan is not None
        everything = _job({**own, (B, "V100-16"): self.elsewhere} if self.elsewhere else own)
        quick = QuickSearch(lambda zone, name: self.elsewhere_usd_per_hour if zone == B else PRICE[name])
        offers = {offer.id: offer for offer in (*quick.offers(everything), *document.inputs.offers)}
        lost = Choice.of(offers[document.plan.nodes[1].offer])
        found = Situation(
            job=everything.model_copy(update={"goal": self.goal}),
            document=document,
            survivors=document.plan.nodes[: self.kept],
            blocked={} if self.wait_s is None else {lost: self.wait_s},
            used_names=frozenset(node.id for node in document.plan.nodes),
            remaining=Remaining(steps=self.steps, usd=self.usd, seconds=self.seconds),
            offers=offers,
            choose=self.choose,
        )
        return found, quick

    def grown(self) -> str | None:
        """Return what a run does that trains on the one node that is left."""
        found, quick = self.situation()
        alone = search(_job({(A, "A100-40"): 1}))
        option = growth(replace(found, document=alone), quick, least_gain_s=LEAST_GAIN_S)
        return None if option is None else option.label

    def decided(self, policy: Policy = Policy.BEST) -> Decision:
        return decide(*self.situation(), policy=policy)


def _job(devices: dict[tuple[str, str], int]) -> Job:
    entry = job().resources[0]
    entries = tuple(
        entry.model_copy(update={"zones": (zone,), "accelerators": {name: most}})
        for (zone, name), most in devices.items()
    )
    return job(budget_usd=1e6, deadline=1e6).model_copy(update={"resources": entries})


REPLACED, WAITED, SMALLER, ELSEWHERE = "replace", "wait and replace", "continue with the remaining nodes", "re-plan"
MEANWHILE = "continue with the remaining nodes until capacity is back"
CHEAP = Goal.MINIMIZE_COST


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        (Figures(), REPLACED),
        # What is left trains and grows back later: 12,500 s and 5.26 USD, and with five V100s 6520 s.
        (Figures(wait_s=600.0), SMALLER),
        (Figures(wait_s=600.0, elsewhere=6), ELSEWHERE),
        (Figures(wait_s=600.0, elsewhere=6, goal=CHEAP), SMALLER),
        (Figures(wait_s=600.0, elsewhere=6, goal=CHEAP, elsewhere_usd_per_hour=0.01), ELSEWHERE),
        (Figures(wait_s=600.0, elsewhere=6, usd=6.0, elsewhere_usd_per_hour=50.0), SMALLER),
        # What the plan was chosen for goes before the goal.
        (Figures(wait_s=600.0, elsewhere=6, choose=Pick.CHEAPEST), SMALLER),
        (Figures(wait_s=600.0, elsewhere=6, goal=CHEAP, choose=Pick.FASTEST), ELSEWHERE),
        # Half the time is worth twice the money, not more.
        (Figures(wait_s=600.0, elsewhere=6, choose=Pick.BALANCED, elsewhere_usd_per_hour=0.3), ELSEWHERE),
        (Figures(wait_s=600.0, elsewhere=6, choose=Pick.BALANCED), SMALLER),
        # Nothing is left: 6920 s and 5.87 USD after the wait, six V100s 6520 s and 8.85 USD, four of them 9320 s.
        (Figures(kept=0, wait_s=600.0, elsewhere=6), ELSEWHERE),
        (Figures(kept=0, wait_s=600.0, elsewhere=4), WAITED),
        (Figures(kept=0, wait_s=600.0, elsewhere=4, steps=100), ELSEWHERE),
        (Figures(kept=0, wait_s=100.0, elsewhere=4, steps=100), WAITED),
        (Figures(kept=0, wait_s=600.0, elsewhere=6, goal=CHEAP), WAITED),
        (Figures(kept=0, wait_s=600.0, elsewhere=6, goal=CHEAP, elsewhere_usd_per_hour=0.1), ELSEWHERE),
        # What does not keep the limits is no way to continue, however good it is otherwise.
        (Figures(kept=0, wait_s=600.0, elsewhere=6, goal=CHEAP, seconds=7000.0), ELSEWHERE),
        (Figures(kept=0, wait_s=600.0, elsewhere=6, usd=6.0), WAITED),
        # Too slow alone to be done in time: the node that is left trains until capacity may be back.
        (Figures(wait_s=600.0, seconds=9000.0), MEANWHILE),
        (Figures(wait_s=2000.0, seconds=9000.0), MEANWHILE),
    ],
)
def test_each_option_wins_where_its_figures_are_best(figures: Figures, best: str) -> None:
    option = figures.decided().option
    assert option is not None
    assert option.label == best
    assert option.wait_s == (figures.wait_s if best == WAITED else 0.0)


@pytest.mark.parametrize(
    ("figures", "grows"),
    [
        # 100 iterations are over 180 s earlier on both A100s, start-up included; 50 are not.
        (Figures(steps=100), True),
        (Figures(steps=50), False),
        (Figures(steps=100, wait_s=600.0), False),
        # Money: 5.26 USD where it stands, 5.87 on both, 2.86 with V100s for a cent.
        (Figures(goal=CHEAP), False),
        (Figures(goal=CHEAP, wait_s=600.0, elsewhere=6, elsewhere_usd_per_hour=0.01), True),
        (Figures(usd=6.0), True),
        (Figures(usd=5.5), False),
    ],
)
def test_a_run_grows_where_its_figures_say_that_it_pays(figures: Figures, grows: bool) -> None:
    assert figures.grown() == ("grow" if grows else None)


def test_capacity_that_begins_later_is_waited_for_and_never_grown_to() -> None:
    """V100s for a cent, in a reservation that begins in two hours."""
    now = datetime(2026, 11, 24, tzinfo=UTC)
    held = Terms(name="held", nodes=6, held="mine", starts_at=now + timedelta(hours=2))
    found, quick = Figures(kept=0, wait_s=600.0, elsewhere=6, goal=CHEAP, elsewhere_usd_per_hour=0.01).situation()
    assert found.document.plan is not None
    later = Reserved(prices=quick.prices, terms=held)
    seconds = []
    for situation in (replace(found, now=now), replace(found, now=now + timedelta(hours=2))):
        option = decide(situation, later).option
        assert option is not None
        assert (option.label, option.wait_s) == (ELSEWHERE, 0.0)
        seconds.append(option.seconds)
        alone = replace(situation, document=search(_job({(A, "A100-40"): 1})), survivors=found.document.plan.nodes[:1])
        grown = growth(alone, later, least_gain_s=LEAST_GAIN_S)
        assert (grown is None) == (situation.now == now)
    assert seconds[0] == pytest.approx(seconds[1] + 7200.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved(QuickSearch):
    """A search whose V100s are all of one reservation."""

    terms: Terms

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        found = QuickSearch.__call__(self, wanted, choose)
        offers = (replace(o, terms=self.terms) if o.zone == B else o for o in found.inputs.offers)
        return replace(found, inputs=replace(found.inputs, offers=tuple(offers)))


class TwoClouds(QuickSearch):
    """A search whose V100s are another cloud's."""

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        found = QuickSearch.__call__(self, wanted, choose)
        offers = (replace(o, provider=Provider("aws")) if o.zone == B else o for o in found.inputs.offers)
        return replace(found, inputs=replace(found.inputs, offers=tuple(offers)))


def test_where_a_plan_over_two_clouds_cannot_be_bought_the_best_one_on_one_cloud_is_an_option() -> None:
    """One A100 and five V100s would be best, and exchange gradients at every step; then six V100s are."""
    found, quick = Figures(wait_s=600.0, elsewhere=6).situation()
    own, other = found.job.resources
    entries = (own, other.model_copy(update={"provider": Provider("aws")}))
    situation = replace(found, job=found.job.model_copy(update={"resources": entries}))
    option = decide(situation, TwoClouds(quick.prices)).option
    assert option is not None
    assert option.label == ELSEWHERE
    assert [node.offer for node in option.document.plan.nodes] == ["gcp/us-central1-b/V100-16"] * 6


class Slow(QuickSearch):
    """A search for which every other setting of a plan makes it ten times as slow."""

    def predict(self, known: PlanDocument) -> PlanDocument:
        assert known.prediction is not None
        seconds = 10.0 * known.prediction.iteration_s_replay
        return replace(known, prediction=replace(known.prediction, iteration_s_replay=seconds))


def test_a_stated_setting_is_dropped_if_the_run_could_not_end_in_time_with_it() -> None:
    found, quick = Figures(kept=0, wait_s=600.0, elsewhere=6, goal=CHEAP, seconds=7000.0).situation()
    assert found.document.plan is not None
    situation = replace(found, stated=replace(found.document.plan, zero_stage=1))
    option = decide(situation, Slow(quick.prices)).option
    assert option is not None
    assert (option.label, option.document.plan.zero_stage) == (ELSEWHERE, 0)


def test_where_no_way_keeps_the_limits_the_nearest_one_says_what_it_lacks() -> None:
    poor, late = Figures(wait_s=600.0, usd=1.0).decided(), Figures(wait_s=2000.0, seconds=60.0).decided()
    assert (poor.option, poor.of_time) == (None, False)
    assert "USD (1.00 USD of the budget are left)" in poor.shortfall
    assert (late.option, late.of_time) == (None, True)
    assert "s (60 s are left until the deadline)" in late.shortfall


@pytest.mark.parametrize(
    ("policy", "first", "blocked"),
    [(Policy.BEST, REPLACED, ELSEWHERE), (Policy.NEVER, REPLACED, None), (Policy.ALWAYS, ELSEWHERE, ELSEWHERE)],
)
def test_policies_differ_in_what_they_consider(policy: Policy, first: str, blocked: str | None) -> None:
    open_ = Figures().decided(policy).option
    shut = Figures(wait_s=600.0, elsewhere=6).decided(policy).option
    assert open_ is not None
    assert open_.label == first
    assert (None if shut is None else shut.label) == blocked


def test_traffic_is_paid_for_by_the_iteration_and_nodes_by_the_hour() -> None:
    option = Figures().decided().option
    assert option is not None
    nodes_usd = 2 * PRICE["A100-40"] * (option.seconds + 120.0) / 3600.0
    assert option.usd == pytest.approx(nodes_usd)
    twice = replace(Figures(), steps=2 * STEPS).decided().option
    assert twice is not None
    assert twice.usd - option.usd == pytest.approx(
        2 * PRICE["A100-40"] * STEPS * (SPEED["A100-40"] * 12 + 0.5) / 3600.0
    )


def test_the_search_is_asked_for_what_the_plan_was_chosen_for() -> None:
    found, quick = Figures(wait_s=600.0, elsewhere=6, choose=Pick.BALANCED).situation()
    decide(found, quick)
    assert set(quick.chosen) == {Pick.BALANCED}


def test_plans_of_another_schedule_do_not_compute_alike() -> None:
    usual = plan(
        nodes=(node("n0"), node("n1")),
        pipelines=(pipeline(0, (stage(0, 2, "n0"), stage(2, 5, "n1")), microbatch_size=2, microbatches=4),),
    )
    assert same_shape(usual, replace(usual))
    assert not same_shape(usual, replace(usual, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE))


def test_without_a_deadline_the_time_left_ends_with_the_ttl_which_the_budget_sets() -> None:
    found, quick = Figures(wait_s=2000.0, seconds=60.0).situation()
    limits = found.job.constraints.model_copy(update={"deadline": None})
    late = decide(replace(found, job=found.job.model_copy(update={"constraints": limits})), quick)
    assert (late.option, late.of_time) == (None, False)
    assert "s (60 s are left until the TTL)" in late.shortfall
