"""Computes the cost of a run from its folder alone."""

from __future__ import annotations

import math

from sailor_cloud.clock import Clock
from sailor_cloud.launch.spend import egress, gateways, usage
from sailor_cloud.launch.spend.charges import charge_all, total_usd
from sailor_cloud.launch.spend.prices import UsagePrices, prices_of
from sailor_cloud.launch.telemetry.generation_log import (
    RecordedGeneration,
    events_damage,
    last_monitor,
    recorded_generations,
)
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.provision import bookkeeping
from sailor_cloud.provision.damage import journal_damage, plan_of, receipt_mismatch, restore_ledger
from sailor_cloud.run.elsewhere import holder
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.ledger import Ledger, LedgerLine
from sailor_cloud.run.progress import Damage, RunCosts
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.units import SECONDS_PER_HOUR


def run_costs(folder: RunFolder, *, clock: Clock, prices: UsagePrices | None = None) -> RunCosts:
    """Return the money of one run; asks no node and no cloud. `prices` are read again unless given.

    If files are damaged, the costs are those that the others tell.
    """
    document, damage = plan_of(folder)
    return costs_under(folder, document, recorded_generations(folder), damage, clock=clock, prices=prices)


def costs_under(
    folder: RunFolder,
    document: PlanDocument | None,
    recorded: tuple[RecordedGeneration, ...],
    damage: tuple[Damage, ...],
    *,
    clock: Clock,
    prices: UsagePrices | None = None,
) -> RunCosts:
    """Return the money of a run whose plan and generations are known; `damage` is that of the plan."""
    prices, entries, now = prices_of(folder, prices), read(folder.journal_file), clock.now()
    state = fold(entries)
    gone, expired = state.phase is Phase.GONE, state.expires_at is not None and state.expires_at <= now
    ledger = Ledger.of(folder, clock, read_only=True)
    harm = ledger.damage()
    if holder(folder) is None:
        damage += journal_damage(folder, ledger)
        harm = restore_ledger(folder, ledger)
        damage += tuple(Damage(file="events", why=why) for why in events_damage(folder, recorded))
        bookkeeping.close_expired(ledger, state, now)
    used: tuple[LedgerLine, ...] = ()
    if document is not None and (harm or not gone):
        used = usage.charges(document, recorded, prices, until=usage.bucket_end(entries, now))
    if harm:
        gateways.charge_gateways(ledger, entries, prices)
    if harm and gone:
        # The teardown has charged what was used; the ledger may lack it now.
        charge_all(ledger, used, at=now)
        used = ()
    spent, rate = ledger.spent_usd(now) + total_usd(used), ledger.usd_per_hour()
    if gone:
        harm = (*harm, *receipt_mismatch(folder, spent))
    projected = spent if gone else None
    steps = document.job.training.steps if document is not None else None
    if document is not None and not gone and not expired and steps is not None:
        monitor = last_monitor(recorded, document)
        if (pace := monitor.measured_iteration_s) is not None:
            newest = next(leg for leg in reversed(recorded) if leg.monitor is monitor)
            left = max(0, steps - monitor.reached_step)
            projected = spent + left * (pace * rate / SECONDS_PER_HOUR + egress.measured_usd_per_step(newest, prices))
    lines = (*ledger.lines(now), *used)
    return RunCosts(
        run_id=folder.run_id,
        lines=lines,
        egress_usd=math.fsum(line.usd for line in lines if line.kind is CostKind.EGRESS),
        spent_usd=spent,
        usd_per_hour=rate,
        projected_usd=projected,
        planned_usd=document.cost.total_usd if document is not None and document.cost is not None else None,
        budget_usd=document.constraints.budget_usd if document is not None else None,
        damage=(*damage, *(Damage(file="ledger", why=why) for why in harm)),
    )
