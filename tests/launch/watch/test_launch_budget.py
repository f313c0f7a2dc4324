from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from factories.documents import NOW, PRICED, document
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.watch.spending_guard import BudgetGuard
from sailor_cloud.model.document import CostKind
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import Ending


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A ledger with one node of 6 USD/h, that is 0.10 USD a minute, since NOW."""
    ledger = Ledger(tmp_path / "ledger.jsonl", FixedClock(NOW))
    ledger.open_item(
        "n0", kind=CostKind.COMPUTE, what="n0", usd_per_hour=6.0, since=NOW, price_source="example", price_as_of=PRICED
    )
    return ledger


def guard(**limits: float) -> BudgetGuard:
    base = document()
    changed = base.constraints.model_copy(update={"budget_usd": None, "deadline": None, **limits})
    return BudgetGuard.of(replace(base, constraints=changed), started_at=NOW, reserve_s=60.0)


def test_a_run_continues_while_its_spending_and_the_reserve_fit_the_budget(ledger: Ledger) -> None:
    assert guard(budget_usd=1.0).verdict(ledger, now=NOW + timedelta(minutes=8), beyond_ledger_usd=0.0) is None


def test_the_budget_stops_a_run_before_it_is_spent(ledger: Ledger) -> None:
    now = NOW + timedelta(minutes=9)
    assert guard(budget_usd=1.0).verdict(ledger, now=now, beyond_ledger_usd=0.0) is Ending.BUDGET
    assert ledger.spent_usd(now) < 1.0


def test_traffic_counts_against_the_budget(ledger: Ledger) -> None:
    assert guard(budget_usd=1.0).verdict(ledger, now=NOW + timedelta(minutes=5), beyond_ledger_usd=0.5) is Ending.BUDGET


def test_the_deadline_stops_a_run(ledger: Ledger) -> None:
    limits = guard(deadline=600.0)
    assert limits.verdict(ledger, now=NOW + timedelta(minutes=9), beyond_ledger_usd=0.0) is None
    assert limits.verdict(ledger, now=NOW + timedelta(minutes=10), beyond_ledger_usd=0.0) is Ending.DEADLINE


def test_a_run_without_limits_is_never_stopped(ledger: Ledger) -> None:
    assert guard().verdict(ledger, now=NOW + timedelta(days=30), beyond_ledger_usd=1e6) is None
