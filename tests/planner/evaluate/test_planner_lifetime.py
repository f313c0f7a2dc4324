from __future__ import annotations

from dataclasses import replace

import pytest

from factories.documents import document
from sailor_cloud.model.job import Constraints
from sailor_cloud.planner.evaluate.lifetime import DEADLINE_GRACE_S, SHARE_OF_BUDGET, ttl_s


def life(limits: Constraints, usd_per_hour: float, worst: float, duration_s: float | None) -> float | None:
    base = document()
    assert base.cost is not None
    cost = replace(base.cost, usd_per_hour=usd_per_hour, worst_case_usd_per_hour=worst)
    return ttl_s(limits, cost, duration_s=duration_s, offers=base.inputs.offers, as_of=base.as_of)


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


def test_the_worst_rate_never_ends_a_plan_before_it_is_through() -> None:
    limits = Constraints(budget_usd=2.0)
    assert life(limits, 4.0, 8.0, 1000.0) == 1000.0


def test_without_budget_and_deadline_nothing_ends_nodes() -> None:
    assert life(Constraints(), 4.0, 8.0, 1000.0) is None
