"""What a run has cost and will cost: the values that `cost` and the dashboard show."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.run.ledger import LedgerLine


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCosts:
    """Money of one run in USD. `lines` hold everything, `egress_usd` is what traffic has cost of it.

    `projected_usd`: at the end of the training, at the pace measured; None where no pace is known.
    """

    run_id: str
    lines: tuple[LedgerLine, ...]
    egress_usd: float
    spent_usd: float
    usd_per_hour: float
    projected_usd: float | None
    planned_usd: float | None
    budget_usd: float | None
