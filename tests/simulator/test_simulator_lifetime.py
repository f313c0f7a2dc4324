from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from factories.documents import document
from sailor_cloud.model.job import Constraints
from sailor_cloud.model.offer import Market, Terms
from sailor_cloud.simulator.lifetime import DEADLINE_GRACE_S, SHARE_OF_BUDGET, Life, lifetime, ttl_s
from sailor_cloud.simulator.timing.uncertainty import totals
from sailor_cloud.workload.error_model import ErrorDistribution


def reasoned(limits: Constraints, usd_per_hour: float, worst: float, duration_s: float | None) -> Life | None:
    base = document()
    assert base.cost is not None
    total = None if duration_s is None else usd_per_hour * duration_s / 3600.0
    cost = replace(base.cost, usd_per_hour=usd_per_hour, worst_case_usd_per_hour=worst, total_usd=total)
    return lifetime(limits, cost, duration_s=duration_s, offers=base.inputs.offers, as_of=base.as_of)


def life(limits: Constraints, usd_per_hour: float, worst: float, duration_s: float | None) -> float | None:
    found = reasoned(limits, usd_per_hour, worst, duration_s)
    return None if found is None else found.seconds


@pytest.mark.parametrize(
    ("limits", "usd_per_hour", "worst", "duration_s", "why"),
    [
        (Constraints(deadline=3600.0), 1.0, 2.0, 1800.0, "the deadline and 10 min for the teardown"),
        (Constraints(budget_usd=2.0), 4.0, 4.1, None, "how long 95 % of the budget lasts at list prices"),
        (Constraints(budget_usd=2.0), 4.0, 8.0, None, "how long the budget lasts at worst-case prices"),
        (Constraints(budget_usd=2.0), 4.0, 8.0, 1000.0, "1.3 times the planned time, as a margin for delays"),
        (Constraints(budget_usd=2.0), 6.0, 10.0, 1180.0, "the planned time"),
        (Constraints(budget_usd=2.0), 1e-9, 1e-9, None, "the longest TTL that is allowed"),
    ],
)
def test_a_lifetime_says_what_sets_it(
    limits: Constraints, usd_per_hour: float, worst: float, duration_s: float | None, why: str
) -> None:
    found = reasoned(limits, usd_per_hour, worst, duration_s)
    assert found is not None
    assert found.why == why


def test_the_deadline_and_its_grace_end_nodes_that_the_budget_could_pay_longer() -> None:
    limits = Constraints(deadline=3600.0, budget_usd=1000.0)
    assert life(limits, 1.0, 2.0, 1800.0) == 4200.0
    assert (DEADLINE_GRACE_S, SHARE_OF_BUDGET) == (600.0, 0.95)


def test_a_budget_that_is_used_up_before_the_deadline_ends_nodes_earlier() -> None:
    # 1.90 of 2 USD last 28.5 minutes.
    limits = Constraints(deadline=36000.0, budget_usd=2.0)
    assert life(limits, 4.0, 40.0, 1200.0) == pytest.approx(1710.0)


def test_a_plan_that_needs_nearly_all_of_its_budget_lives_long_enough_to_finish() -> None:
    limits = Constraints(deadline=36000.0, budget_usd=2.0)
    assert life(limits, 4.0, 40.0, 1764.0) == 1764.0


def test_without_a_deadline_the_worst_rate_counts() -> None:
    limits = Constraints(budget_usd=2.0)
    assert life(limits, 4.0, 8.0, None) == pytest.approx(900.0)
    # At a rate that hardly moves the share that is kept back comes first.
    assert life(limits, 4.0, 4.1, None) == pytest.approx(1710.0)


def test_the_worst_rate_leaves_a_late_run_time_to_finish() -> None:
    limits = Constraints(budget_usd=2.0)
    assert life(limits, 4.0, 8.0, 1000.0) == pytest.approx(1300.0)
    # At 6 USD/h the budget pays for 1,140 s, at the worst rate for 720 s.
    assert life(limits, 6.0, 10.0, 1000.0) == pytest.approx(1140.0)
    assert life(limits, 6.0, 10.0, 1180.0) == 1180.0


def test_money_that_start_up_does_not_use_lengthens_the_life() -> None:
    base = document()
    assert base.cost is not None
    cost = replace(base.cost, usd_per_hour=4.0, worst_case_usd_per_hour=8.0, total_usd=0.9)
    limits = Constraints(budget_usd=2.0, deadline=36000.0)
    found = ttl_s(limits, cost, duration_s=1200.0, offers=base.inputs.offers, as_of=base.as_of)
    # 1 of 1.90 USD is left at the end: 15 minutes more.
    assert found == pytest.approx(2100.0)


def test_without_budget_and_deadline_nothing_ends_nodes() -> None:
    assert life(Constraints(), 4.0, 8.0, 1000.0) is None


def test_nodes_that_are_waited_for_cost_nothing_meanwhile() -> None:
    """An hour's wait; then 900 s at the worst rate, and no later than the end of the nodes' own time."""
    base = document()
    assert base.cost is not None
    cost = replace(base.cost, usd_per_hour=4.0, worst_case_usd_per_hour=8.0)

    def waited(**terms: float) -> float | None:
        flex = Terms(name="flex", nodes=1, wait_s=3600.0, **terms)
        offers = [replace(base.inputs.offers[0], terms=flex, market=Market.FLEX_START), base.inputs.offers[0]]
        return ttl_s(Constraints(budget_usd=2.0), cost, duration_s=None, offers=offers, as_of=base.as_of)

    assert waited() == pytest.approx(4500.0)
    assert waited(most_s=600.0) == pytest.approx(4200.0)
    later = Terms(name="block", nodes=1, starts_at=base.as_of + timedelta(hours=2), wait_s=60.0)
    offers = [replace(base.inputs.offers[0], terms=later)]
    ends = ttl_s(Constraints(budget_usd=2.0), cost, duration_s=None, offers=offers, as_of=base.as_of)
    assert ends == pytest.approx(8100.0)


def test_no_run_lives_longer_than_a_year() -> None:
    assert life(Constraints(deadline=1e9), 4.0, 8.0, None) == 31_536_000.0


def test_free_runs_are_not_ended_by_a_budget() -> None:
    assert life(Constraints(budget_usd=2.0), 0.0, 0.0, None) is None


def test_runs_that_cost_cents_are_also_ended_by_their_budget() -> None:
    # 95 % of 2 USD at half a dollar per hour last 3.8 hours.
    assert life(Constraints(deadline=36000.0, budget_usd=2.0), 0.5, 1.0, None) == pytest.approx(13_680.0)


def test_the_probability_of_finishing_within_the_limits_counts_the_ttl() -> None:
    limits, cost, errors = Constraints(deadline=2000.0), document().cost, ErrorDistribution(half=0.1, tail=0.0)
    assert cost is not None
    early, late = (
        totals(limits, cost, fixed_s=0.0, duration_s=1000.0, distribution=errors, ttl_s=life_s)
        for life_s in (1100.0, 3000.0)
    )
    assert early.within_limits == pytest.approx(errors.probability(1.1))
    assert early.within_deadline == late.within_deadline == late.within_limits == pytest.approx(errors.probability(2.0))
