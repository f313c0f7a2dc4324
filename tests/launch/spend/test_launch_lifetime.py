from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.cloud_plans import aws_document
from factories.documents import document
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.spend.lifetime import Remaining, life_s, usd_per_hour, with_affordable_rate
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Constraints
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.run.folder import RunFolder

# A minute of the document's nodes.
LEAST = 0.005


def test_a_plan_never_outlives_its_own_ttl() -> None:
    assert life_s(replace(document(), ttl_s=15.0)) == 15.0


def test_a_plan_of_unknown_duration_lives_for_its_ttl() -> None:
    assert life_s(replace(document(), ttl_s=15.0, prediction=None)) == 15.0


def test_a_plan_written_elsewhere_never_outlives_its_budget() -> None:
    # 10 s for 0.003 USD in all; after them, at 0.30 USD an hour, the rest of 0.03 USD less a twentieth kept back.
    poor = replace(document(), ttl_s=36000.0, constraints=Constraints(budget_usd=0.03))
    assert life_s(poor) == pytest.approx(10.0 + (0.95 * 0.03 - 0.003) / 0.30 * 3600.0)


def test_a_run_that_nothing_would_end_is_refused() -> None:
    with pytest.raises(RequestError, match="neither a budget nor a deadline"):
        life_s(replace(document(), ttl_s=None, constraints=Constraints()))


def test_nodes_that_would_end_before_the_plan_is_through_are_not_bought() -> None:
    message = (
        r"would shut themselves down 9\.90 s after their start, and the plan needs 10\.0 s; raise constraints.deadline"
    )
    with pytest.raises(RequestError, match=message):
        life_s(replace(document(), ttl_s=9.9))
    assert life_s(replace(document(), ttl_s=10.0)) == 10.0


def test_a_budget_below_the_first_minute_buys_nothing() -> None:
    # A command of unknown duration, on nodes of 0.30 USD an hour in all.
    command = replace(document(), prediction=None, ttl_s=8.0)
    refused = replace(command, constraints=Constraints(budget_usd=LEAST))
    message = r"each node is billed for 60 s at least, which costs 0.00500 USD, and the budget is 0.00500 USD; raise"
    with pytest.raises(RequestError, match=message):
        life_s(refused)
    assert life_s(replace(command, constraints=Constraints(budget_usd=2 * LEAST))) > 0.0


@pytest.mark.parametrize("ttl_s", [0.0, -600.0])
def test_nodes_that_would_end_before_they_start_are_not_bought_however_long_the_plan_takes(ttl_s: float) -> None:
    with pytest.raises(
        RequestError, match="would shut themselves down before they start, since their capacity has ended"
    ):
        life_s(replace(document(), ttl_s=ttl_s, prediction=None))


def worst_rate(planned: PlanDocument, *, usd: float | None, hours: float) -> float:
    """The worst rate of a plan of 0.30 USD/h when so much money is left for so long."""
    left = Remaining(steps=1, usd=usd, seconds=None, life_s=3600.0 * hours, usd_alone=usd)
    changed = with_affordable_rate(planned, left)
    assert changed.cost is not None
    assert changed.cost.usd_per_hour == 0.30
    return changed.cost.worst_case_usd_per_hour


def test_prices_may_rise_as_far_as_the_budget_lasts_until_the_nodes_end_themselves() -> None:
    base = document()
    assert base.cost is not None
    planned = replace(base, cost=replace(base.cost, worst_case_usd_per_hour=0.90))
    assert worst_rate(planned, usd=2.0, hours=4.0) == 0.50
    # No further than the worst case, and never below what the plan costs.
    assert worst_rate(planned, usd=4.0, hours=4.0) == 0.90
    assert worst_rate(planned, usd=1.0, hours=4.0) == 0.30
    assert worst_rate(planned, usd=None, hours=4.0) == 0.90
    assert worst_rate(planned, usd=2.0, hours=0.0) == 0.90
    assert worst_rate(planned, usd=0.0002, hours=1 / 3600) == pytest.approx(0.72)
    assert (
        with_affordable_rate(
            replace(planned, cost=None), Remaining(steps=1, usd=1.0, seconds=None, life_s=1.0, usd_alone=1.0)
        ).cost
        is None
    )


def test_a_plan_costs_its_rate_and_nothing_without_a_bill() -> None:
    assert usd_per_hour(document()) == 0.30
    assert usd_per_hour(replace(document(), cost=None)) == 0.0


def test_with_a_deadline_too_the_highest_prices_of_spot_nodes_until_the_ttl_stay_within_the_budget() -> None:
    """Worked out from what AWS is asked for: a highest price for each spot node, list prices for all else."""
    base = aws_document()
    assert base.cost is not None
    # Two spot nodes and one on demand at 1.50 USD/h each, and 0.10 USD/h beside them; spot may triple.
    cost = replace(base.cost, usd_per_hour=4.60, worst_case_usd_per_hour=10.60)
    planned = replace(base, cost=cost, constraints=Constraints(budget_usd=30.0, deadline=4 * 3600.0), ttl_s=15000.0)
    life = life_s(planned)
    assert life == 4 * 3600.0 + 600.0
    folder = RunFolder(run_id="tiny-20261121-051313-a1b2", path=Path("/runs/tiny-20261121-051313-a1b2"))

    def most_usd(document: PlanDocument) -> float:
        roots = rendered_roots(
            document,
            folder,
            public_key="ssh-ed25519 AAAA",
            expires_at=datetime(2026, 11, 21, 6, tzinfo=UTC),
            ssh_from="203.0.113.7/32",
        )
        nodes = next(root for root in roots if root.stack == "aws").variables["nodes"]
        return (sum(node["max_usd_per_hour"] for node in nodes.values()) + 0.10) * life / 3600.0

    left = Remaining(steps=1, usd=30.0, seconds=None, life_s=life, usd_alone=30.0)
    assert most_usd(replace(planned, ttl_s=None)) > 30.0
    assert most_usd(planned) <= 30.0
    assert 25.0 < most_usd(with_affordable_rate(planned, left)) <= 30.0
