"""Plans that keep their limits with a probability that the job asks for."""

from __future__ import annotations

import dataclasses
import random

import pytest

from factories.planning import example, plan
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument, Status, Totals
from sailor_cloud.planner.probable import LEVELS, probable
from sailor_cloud.simulator.resimulate import broken_limits

ASKED = (0.6, 0.8, 0.9, 0.95, 0.999)


def planned(deadline: float, probability: float | None, goal: str = "minimize-cost") -> PlanDocument:
    wanted = {} if probability is None else {"constraints__probability": probability}
    return plan(example("quickstart.yaml", constraints__deadline=deadline, goal=goal, **wanted))


def within(document: PlanDocument) -> float:
    assert document.totals is not None
    assert document.totals.within_limits is not None
    return document.totals.within_limits


def test_a_higher_probability_gives_a_likelier_plan_or_none() -> None:
    free, before = planned(50.0, None), 0.0
    found = [(asked, planned(50.0, asked)) for asked in ASKED]
    for asked, document in found:
        if document.plan is None:
            break
        assert within(document) >= max(asked, before)
        before = within(document)
        assert list(broken_limits(document)) == []
        assert document.cost is not None
        assert free.cost is not None
        assert document.cost.total_usd >= free.cost.total_usd * (1 - 1e-9)
    assert found[0][1].plan == free.plan
    assert before > within(free)
    last = found[-1][1]
    assert last.status is Status.INFEASIBLE
    assert last.infeasibility is not None
    assert last.infeasibility.constraint == "probability"
    assert last.infeasibility.needed >= before
    assert "with a probability of 99.9 %" in last.infeasibility.message


def test_a_plan_found_with_tighter_limits_is_not_called_optimal_and_keeps_the_bound_of_the_first_search() -> None:
    free, asked = planned(54.0, None), planned(54.0, 0.9)
    assert (free.status, asked.status) == (Status.OPTIMAL, Status.FEASIBLE)
    assert asked.bound == free.bound
    assert asked.objective is not None
    assert asked.bound is not None
    assert asked.optimality_gap == pytest.approx(1.0 - asked.bound / asked.objective.value)


def test_without_a_probability_the_plan_is_as_expected() -> None:
    assert planned(54.0, None).constraints.probability is None
    assert within(planned(54.0, None)) < 0.9


@pytest.mark.parametrize("number", range(20))
def test_a_higher_required_probability_never_gives_a_less_likely_plan(number: int) -> None:
    dice = random.Random(number)
    first = planned(54.0, None)
    chances = [dice.random() for _ in range(len(LEVELS) + 1)]

    def document(step: int) -> PlanDocument:
        chance = chances[step]
        totals = Totals(quantiles=(), within_budget=None, within_deadline=chance, within_limits=chance)
        return dataclasses.replace(first, totals=totals)

    kept = []
    for wanted in sorted(dice.random() for _ in range(15)):
        found = probable(wanted, document(0), ratio=lambda level: 1.0 + level, search=lambda _, step: document(step))
        if found.plan is not None:
            assert within(found) >= wanted
            kept.append(within(found))
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"constraints__probability": 1.5}, "less than 1"),
        ({"constraints__probability": 0.4}, "greater than 0.5"),
        ({"constraints": {"probability": 0.9}}, "budget_usd or deadline"),
        ({"constraints__probability": 0.9, "training__steps": None}, "needs training.steps"),
    ],
)
def test_a_probability_that_means_nothing_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, RequestError), match=message):
        example("quickstart.yaml", **changes)
