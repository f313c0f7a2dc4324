"""Computes the cost of a run from its folder alone."""

from __future__ import annotations

import math

from sailor_cloud.clock import Clock
from sailor_cloud.launch.spend import egress, usage
from sailor_cloud.launch.spend.charges import total_usd
from sailor_cloud.launch.spend.prices import UsagePrices, prices_of
from sailor_cloud.launch.telemetry.generation_log import last_monitor, recorded_generations
from sailor_cloud.model.document import CostKind
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.progress import RunCosts
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.units import SECONDS_PER_HOUR


def run_costs(folder: RunFolder, *, clock: Clock, prices: UsagePrices | None = None) -> RunCosts:
    """Return the money of one run; asks no node and no cloud. `prices` are read again unless given."""
    prices = prices_of(folder, prices)
    document, ledger, now = folder.read_document(), Ledger.of(folder, clock), clock.now()
    recorded = recorded_generations(folder)
    gone = fold(read(folder.journal_file)).phase is Phase.GONE
    # The teardown has charged them already.
    used = () if gone else usage.charges(document, recorded, prices, until=now)
    spent, rate = ledger.spent_usd(now) + total_usd(used), ledger.usd_per_hour()
    monitor = last_monitor(recorded, document)
    steps, pace = document.job.training.steps, monitor.measured_iteration_s
    projected = spent if gone else None
    if not gone and steps is not None and pace is not None:
        newest = next(leg for leg in reversed(recorded) if leg.monitor is monitor)
        left = max(0, steps - monitor.step)
        projected = spent + left * (pace * rate / SECONDS_PER_HOUR + egress.measured_usd_per_step(newest, prices))
    lines = (*ledger.lines(now), *used)
    return RunCosts(
        run_id=folder.run_id,
        lines=lines,
        egress_usd=math.fsum(line.usd for line in lines if line.kind is CostKind.EGRESS),
        spent_usd=spent,
        usd_per_hour=rate,
        projected_usd=projected,
        planned_usd=document.cost.total_usd if document.cost else None,
        budget_usd=document.constraints.budget_usd,
    )
