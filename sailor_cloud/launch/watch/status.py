"""Puts together what a run's folder says about it."""

from __future__ import annotations

from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.launch.spend import usage
from sailor_cloud.launch.spend.charges import total_usd
from sailor_cloud.launch.spend.prices import UsePrices
from sailor_cloud.launch.telemetry.generation_log import last_monitor, legs
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.run.status import RunStatus
from sailor_cloud.units import SECONDS_PER_HOUR


def run_status(folder: RunFolder, *, clock: Clock, prices: UsePrices | None = None) -> RunStatus:
    """Return the status of one run; asks no node and no cloud. `prices` are read anew unless given."""
    now = clock.now()
    state = fold(read(folder.journal_file))
    document = folder.read_document() if folder.plan_file.is_file() else None
    recorded = legs(folder) if document else ()
    monitor = last_monitor(recorded, document) if document else None
    prediction = recorded[-1].document.prediction if recorded else None
    ledger = Ledger.of(folder, clock)
    spent, pace = ledger.spent_usd(now), monitor.measured_iteration_s if monitor else None
    usd_per_step = None
    if document is not None and document.job.run is not None and pace is not None and ledger.usd_per_hour():
        usd_per_step = ledger.usd_per_hour() * pace / SECONDS_PER_HOUR
    tokens = monitor.tokens_per_iteration if monitor else 0
    if state.phase is not Phase.GONE and document is not None:
        spent += total_usd(usage.charges(document, recorded, prices or UsePrices(), until=now))
    return RunStatus(
        run_id=folder.run_id,
        job=document.job.name if document else "",
        state=state,
        controller=folder.lock_holder(),
        step=monitor.step if monitor else 0,
        steps=document.job.training.steps if document else None,
        loss=monitor.loss if monitor else None,
        spent_usd=spent,
        budget_usd=document.constraints.budget_usd if document else None,
        measured_at=now,
        iteration_s=monitor.measured_iteration_s if monitor else None,
        planned_iteration_s=prediction.iteration_s_replay if prediction else None,
        parts=monitor.parts if monitor else {},
        usd_per_step=usd_per_step,
        usd_per_million_tokens=1e6 * usd_per_step / tokens if usd_per_step is not None and tokens else None,
    )


def status_to_dict(status: RunStatus) -> dict[str, Any]:
    """Return a status as plain JSON values."""
    from pydantic import TypeAdapter

    value: dict[str, Any] = TypeAdapter(RunStatus).dump_python(status, mode="json")
    return {**value, "abandoned": status.abandoned}
