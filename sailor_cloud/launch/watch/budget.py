"""Says when a run must stop to stay inside its budget and its deadline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sailor_cloud.launch.options import Ending
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGuard:
    """The limits of one run. `reserve_s` is the time for which nodes go on costing after the decision to stop."""

    budget_usd: float | None
    deadline: datetime | None
    reserve_s: float

    @classmethod
    def of(cls, document: PlanDocument, *, started_at: datetime, reserve_s: float) -> BudgetGuard:
        limits = document.constraints
        deadline = started_at + timedelta(seconds=limits.deadline) if limits.deadline else None
        return cls(budget_usd=limits.budget_usd, deadline=deadline, reserve_s=reserve_s)

    def verdict(self, ledger: Ledger, *, now: datetime, beyond_ledger_usd: float) -> Ending | None:
        """Return why the run must stop now, or None while it may go on.

        beyond_ledger_usd: what is spent, or will be until the run has stopped, and not in the ledger yet.
        """
        reserve = timedelta(seconds=self.reserve_s)
        if self.budget_usd is not None and ledger.projected_usd(now + reserve) + beyond_ledger_usd >= self.budget_usd:
            return Ending.BUDGET
        if self.deadline is not None and now >= self.deadline:
            return Ending.DEADLINE
        return None
