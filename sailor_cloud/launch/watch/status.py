"""The state of a run, read from its folder, for `status` and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.errors import SailorError, of_system
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.spend.run_costs import costs_under, run_costs
from sailor_cloud.launch.telemetry.generation_log import (
    RecordedGeneration,
    last_monitor,
    read_events,
    recorded_generations,
)
from sailor_cloud.launch.watch.event_text import MILESTONES, event_text
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.damage import plan_of
from sailor_cloud.run import elsewhere
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Entry, Event, read
from sailor_cloud.run.progress import Damage, RunStatus
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.units import SECONDS_PER_HOUR


def run_status(folder: RunFolder, *, clock: Clock, prices: UsagePrices | None = None) -> RunStatus:
    """Return the status of one run; asks no node and no cloud. `prices` are read again unless given."""
    now = clock.now()
    entries = read(folder.journal_file)
    state = fold(entries)
    document, damage = plan_of(folder)
    recorded = recorded_generations(folder) if document else ()
    monitor = last_monitor(recorded, document) if document else None
    prediction = recorded[-1].document.prediction if recorded else None
    costs = costs_under(folder, document, recorded, damage, clock=clock, prices=prices)
    pace, rate = monitor.measured_iteration_s if monitor else None, costs.usd_per_hour
    usd_per_step = None
    if document is not None and document.job.run is not None and pace is not None and rate:
        usd_per_step = rate * pace / SECONDS_PER_HOUR
    tokens = monitor.tokens_per_iteration if monitor else 0
    return RunStatus(
        run_id=folder.run_id,
        job=document.job.name if document else "",
        state=state,
        controller=elsewhere.holder(folder),
        step=monitor.reached_step if monitor else 0,
        steps=document.job.training.steps if document else None,
        loss=monitor.loss if monitor else None,
        spent_usd=costs.spent_usd,
        budget_usd=costs.budget_usd,
        measured_at=now,
        iteration_s=pace,
        planned_iteration_s=prediction.iteration_s_replay if prediction else None,
        parts=monitor.parts if monitor else {},
        checking=document is not None
        and document.job.run is None
        and state.phase is Phase.TRAINING
        and not (monitor and monitor.step)
        and _uncalibrated(entries),
        usd_per_step=usd_per_step,
        usd_per_million_tokens=1e6 * usd_per_step / tokens if usd_per_step is not None and tokens else None,
        damage=costs.damage,
    )


def status_of(folder: RunFolder, *, clock: Clock, prices: UsagePrices | None = None) -> RunStatus:
    """Return the status of one run of many; of one that can't be read, only why."""
    try:
        folder.check()
        return run_status(folder, clock=clock, prices=prices)
    except (SailorError, OSError) as error:
        why = of_system(error) if isinstance(error, OSError) else str(error)
    return RunStatus(
        run_id=folder.run_id,
        job="",
        state=fold(()),
        controller=None,
        step=0,
        steps=None,
        loss=None,
        spent_usd=0.0,
        budget_usd=None,
        measured_at=clock.now(),
        damage=(Damage(file="folder", why=why),),
    )


def _uncalibrated(entries: Sequence[Entry]) -> bool:
    """Return whether the newest generation has not timed an iteration yet, as it does before its first step."""
    marks = [entry.event for entry in entries if entry.event in (Event.CALIBRATED, Event.GENERATION_STARTED)]
    return marks[-1:] == [Event.GENERATION_STARTED]


def status_to_dict(status: RunStatus) -> dict[str, Any]:
    """Return a status as plain JSON values."""
    from pydantic import TypeAdapter

    value: dict[str, Any] = TypeAdapter(RunStatus).dump_python(status, mode="json")
    return {**value, "abandoned": status.abandoned}


class WatchedRuns:
    """Runs for a page that polls: `named` ones, or the newest; finished runs are read once."""

    MOST = 20

    def __init__(self, named: Sequence[RunFolder], *, clock: Clock) -> None:
        self._named, self._clock, self._prices = tuple(named), clock, UsagePrices()
        self._gone: dict[str, dict[str, Any]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """Return the statuses of the runs, newest first."""
        return [self._row(folder) for folder in reversed(self._folders())]

    def _folders(self) -> Sequence[RunFolder]:
        return self._named or RunFolder.list(checked=False)[-self.MOST :]

    def _row(self, folder: RunFolder) -> dict[str, Any]:
        if folder.run_id in self._gone:
            return self._gone[folder.run_id]
        status = status_of(folder, clock=self._clock, prices=self._prices)
        row = status_to_dict(status)
        if status.state.phase is Phase.GONE:
            self._gone[folder.run_id] = row
        return row

    def snapshot(self, run: str) -> dict[str, Any]:
        """Return all data of a run. Raises KeyError for one that is not watched, RequestError for a damaged one."""
        folder = {each.run_id: each for each in self._folders()}[run]
        folder.check()
        return snapshot(folder, clock=self._clock, prices=self._prices)


MOST_POINTS = 400


def snapshot(folder: RunFolder, *, clock: Clock, prices: UsagePrices | None = None) -> dict[str, Any]:
    """Return a run's data as plain JSON values. `prices` are read again unless given."""
    entries = read(folder.journal_file)
    state, document, recorded = fold(entries), folder.read_document(), recorded_generations(folder)
    costs = run_costs(folder, clock=clock, prices=prices)
    monitor, now = last_monitor(recorded, document), clock.now()
    prediction = recorded[-1].document.prediction if recorded else document.prediction
    return {
        "run": folder.run_id,
        "job": document.job.name,
        "phase": state.phase.value,
        "outcome": state.outcome,
        "now": now.isoformat(),
        "controller": elsewhere.holder(folder) is not None,
        "expires_at": state.expires_at.isoformat() if state.expires_at else None,
        "step": monitor.reached_step,
        "steps": document.job.training.steps,
        "loss": monitor.loss,
        "unigram_entropy": monitor.unigram_entropy,
        "tokens_per_s": monitor.tokens_per_s,
        "planned_iteration_s": prediction.iteration_s_replay if prediction else None,
        "measured_iteration_s": monitor.measured_iteration_s,
        "spent_usd": costs.spent_usd,
        "usd_per_hour": costs.usd_per_hour,
        "projected_usd": costs.projected_usd,
        "budget_usd": costs.budget_usd,
        "steps_of": _series(folder),
        "generations": [_generation(leg) for leg in recorded],
        "nodes": [
            {
                "name": row.key,
                "what": row.data.get("instance_type", ""),
                "zone": row.data.get("zone", ""),
                "market": row.data.get("market", ""),
                "usd_per_hour": row.data.get("usd_per_hour"),
                "created_at": row.created_at.isoformat() if row.created_at else None,
                "gone_at": row.gone_at.isoformat() if row.gone_at else None,
            }
            for row in state.resources
            if row.resource == NODE
        ],
        "timeline": [line for entry in entries if (line := _line(entry))],
    }


def _series(folder: RunFolder) -> list[dict[str, float]]:
    """Return step, loss and iteration time of at most MOST_POINTS steps, among them the newest."""
    steps = [event for event in read_events(folder) if event["event"] == "step"]
    stride = max(1, -(-len(steps) // MOST_POINTS))
    chosen = steps[::-1][::stride][::-1]
    return [{name: event[name] for name in ("step", "loss", "iteration_s")} for event in chosen]


def _generation(leg: RecordedGeneration) -> dict[str, Any]:
    plan = leg.document.plan
    return {
        "number": leg.generation,
        "nodes": len(plan.nodes) if plan else 0,
        "pipelines": len(plan.pipelines) if plan else 0,
        "step": leg.monitor.reached_step,
    }


def _line(entry: Entry) -> dict[str, str] | None:
    return {"at": entry.ts.isoformat(), "text": event_text(entry)} if entry.event in MILESTONES else None
