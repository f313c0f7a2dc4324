from __future__ import annotations

from dataclasses import replace

import pytest

from factories.plans import node
from factories.quick_search import job, offer
from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.remaining_job import Devices, remaining_job
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.job import Job, Resource
from sailor_cloud.model.offer import Market, Offer

A, B = "us-central1-a", "us-central1-b"
LEFT = Remaining(steps=100, usd=7.0, seconds=3600.0)
SMALL = offer(A, "A100-40", 1.5)
LARGE = replace(SMALL, id="large", instance_type="vm-large", accelerator_count=2)
STEADY = replace(SMALL, id="steady", market=Market.ON_DEMAND)


def one_zone(most: int = 4, *, markets: tuple[Market, ...] = (Market.SPOT,)) -> Job:
    entry = job().resources[0]
    changes = {"zones": (A,), "accelerators": {"A100-40": most}, "markets": markets}
    return job().model_copy(update={"resources": (entry.model_copy(update=changes),)})


def resources_left(
    wanted: Job, *offers: Offer, held: tuple[str, ...] = (), blocked: tuple[Offer, ...] = (), survivors: bool = False
) -> list[tuple[int, tuple[Market, ...], tuple[str, ...] | None]]:
    known = {one.id: one for one in offers}
    running = tuple(
        node(f"n{index}", offer=name, devices=known[name].accelerator_count) for index, name in enumerate(held)
    )
    devices = Devices(survivors=running, blocked=frozenset(Choice.of(one) for one in blocked), offers=known)
    left = remaining_job(wanted, devices, LEFT, only_survivors=survivors)
    return [] if left is None else [_row(entry) for entry in left.resources]


def _row(entry: Resource) -> tuple[int, tuple[Market, ...], tuple[str, ...] | None]:
    return entry.accelerators["A100-40"], entry.markets, entry.instance_types


def test_without_refusals_all_that_the_job_allows_is_left() -> None:
    assert resources_left(one_zone(), SMALL, LARGE) == [(4, (Market.SPOT,), None)]


def test_a_refused_type_leaves_the_others_of_its_zone() -> None:
    assert resources_left(one_zone(), SMALL, LARGE, blocked=(LARGE,)) == [(4, (Market.SPOT,), ("vm-a100-40",))]


def test_a_refused_market_leaves_the_other() -> None:
    both = one_zone(markets=(Market.SPOT, Market.ON_DEMAND))
    assert resources_left(both, SMALL, STEADY, blocked=(SMALL,)) == [(4, (Market.ON_DEMAND,), ("vm-a100-40",))]


def test_a_refusal_in_one_zone_says_nothing_about_another() -> None:
    entry = one_zone().resources[0].model_copy(update={"zones": (A, B)})
    wanted = one_zone().model_copy(update={"resources": (entry,)})
    there = replace(SMALL, id="there", zone=B)
    assert resources_left(wanted, SMALL, there, blocked=(SMALL,)) == [(4, (Market.SPOT,), None)]


def test_running_nodes_of_a_refused_type_may_stay_but_not_grow() -> None:
    rows = resources_left(one_zone(), SMALL, LARGE, held=("large",), blocked=(LARGE,))
    assert rows == [(2, (Market.SPOT,), ("vm-large",)), (2, (Market.SPOT,), ("vm-a100-40",))]
    assert sum(number for number, _, _ in rows) == 4, "never more than the job allows"


def test_continuing_with_what_is_left_buys_nothing() -> None:
    rows = resources_left(one_zone(), SMALL, LARGE, held=("large",), survivors=True)
    assert rows == [(2, (Market.SPOT,), ("vm-large",))]


def test_nothing_is_left_where_everything_is_refused() -> None:
    assert resources_left(one_zone(), SMALL, blocked=(SMALL,)) == []


def test_the_remaining_money_time_and_steps_limit_the_rest() -> None:
    devices = Devices(survivors=(), blocked=frozenset(), offers={SMALL.id: SMALL})
    left = remaining_job(one_zone(), devices, LEFT, only_survivors=False)
    assert left is not None
    assert (left.constraints.budget_usd, left.constraints.deadline, left.training.steps) == (7.0, 3600.0, 100)


@pytest.mark.parametrize(("own", "expected"), [(None, 4.0), (3.0, 3.0), (5.0, 4.0)])
def test_no_plan_is_requested_that_the_remaining_money_can_t_sustain(own: float | None, expected: float) -> None:
    devices = Devices(survivors=(), blocked=frozenset(), offers={SMALL.id: SMALL})
    wanted = one_zone()
    limits = wanted.constraints.model_copy(update={"max_usd_per_hour": own})
    wanted = wanted.model_copy(update={"constraints": limits})
    # The nodes shut themselves down after two hours, and eight dollars are left until then.
    left = replace(LEFT, usd_alone=8.0, life_s=7200.0)
    within, free = (
        remaining_job(wanted, devices, left, only_survivors=False, limits=limited) for limited in (True, False)
    )
    assert within is not None
    assert free is not None
    assert (within.constraints.max_usd_per_hour, free.constraints.max_usd_per_hour) == (expected, own)
