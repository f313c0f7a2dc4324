"""Watches a run's spend while it runs: warns, notifies the webhook, and stops the run in time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.spend import gateways
from sailor_cloud.launch.telemetry.notify import Notice
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.run.journal import Event, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import Ending
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetGuard:
    """The limits of one run. `reserve_s` is how long nodes still cost money after the decision to stop."""

    budget_usd: float | None
    deadline: datetime | None
    reserve_s: float

    @classmethod
    def of(cls, document: PlanDocument, *, started_at: datetime, reserve_s: float) -> BudgetGuard:
        limits = document.constraints
        deadline = started_at + timedelta(seconds=limits.deadline) if limits.deadline else None
        return cls(budget_usd=limits.budget_usd, deadline=deadline, reserve_s=reserve_s)

    def verdict(self, ledger: Ledger, *, now: datetime, beyond_ledger_usd: float) -> Ending | None:
        """Return why the run must stop now, or None while it may continue.

        beyond_ledger_usd: spend until the run has stopped that is not in the ledger yet.
        """
        reserve = timedelta(seconds=self.reserve_s)
        if self.budget_usd is not None and ledger.projected_usd(now + reserve) + beyond_ledger_usd >= self.budget_usd:
            return Ending.BUDGET
        if self.deadline is not None and now >= self.deadline:
            return Ending.DEADLINE
        return None


_SHARES = ((0.5, Notice.BUDGET_50), (0.8, Notice.BUDGET_80))


@dataclass(slots=True)
class SpendingWatch:
    """Runs in the background of a controller."""

    context: RunContext
    guard: BudgetGuard
    interval_s: float
    _sent: set[str] = field(default_factory=set)
    _warned: bool = False

    def __post_init__(self) -> None:
        # A controller that takes over does not repeat warnings of the previous one.
        entries = read(self.context.folder.journal_file)
        self._sent = {entry.data["notice"] for entry in entries if entry.event is Event.NOTIFIED}

    async def run(self) -> None:
        while self.context.stop.ending is None:
            self.check()
            await asyncio.sleep(self.interval_s)

    def check(self) -> None:
        """Check spend and time against their limits once, and act on the result."""
        context = self.context
        now = context.charged_until
        if context.job_document.job.cloud.network is NetworkAccess.PRIVATE:
            gateways.charge_gateways(context.ledger, read(context.folder.journal_file), context.prices)
        beyond_ledger_usd = context.used_usd + context.pending_usd + self._last_steps_usd()
        ending = self.guard.verdict(context.ledger, now=now, beyond_ledger_usd=beyond_ledger_usd)
        if ending is None and now >= context.expires_at - timedelta(seconds=self.guard.reserve_s):
            # Without a deadline, or with a later one, the budget set the TTL.
            deadline = self.guard.deadline
            ending = Ending.DEADLINE if deadline is not None and deadline <= context.expires_at else Ending.BUDGET
        self._report_shares(ending)
        if ending is None:
            self._warn()
            return
        limit = "the budget" if ending is Ending.BUDGET else "the time limit"
        saving = "saving a checkpoint and " if context.monitor is not None else ""
        context.observer.note(f"{limit} is reached: {saving}tearing down")
        context.stop.request(ending)

    def _last_steps_usd(self) -> float:
        """Return the possible traffic cost of iterations between the decision to stop and the end."""
        monitor = self.context.monitor
        pace = monitor.measured_iteration_s if monitor else None
        if pace is None:
            return 0.0
        return self.context.used_usd_per_step * (1.0 + self.guard.reserve_s / pace)

    def _report_shares(self, ending: Ending | None) -> None:
        budget, spent = self.guard.budget_usd, self.context.spent_usd
        if budget is None:
            return
        for share, notice in _SHARES:
            if spent >= share * budget:
                self._once(
                    notice,
                    f"{100 * share:.0f} % of the budget is spent: {usd_text(spent)} of {usd_text(budget)} USD",
                )
        if ending is Ending.BUDGET:
            self._once(Notice.BUDGET_100, f"the budget of {usd_text(budget)} USD is used up, except for the teardown")

    def _once(self, notice: Notice, text: str) -> None:
        if notice.value not in self._sent:
            self._sent.add(notice.value)
            self.context.journal.append(Event.NOTIFIED, notice=notice.value)
            self.context.observer.note(text)
            self.context.notifier.notify(notice, run=self.context.folder.run_id, text=text)

    def _warn(self) -> None:
        """Warn once if the rest of the run, at the measured pace, exceeds a limit."""
        context, monitor = self.context, self.context.monitor
        pace = monitor.measured_iteration_s if monitor else None
        if self._warned or monitor is None or pace is None or context.steps is None:
            return
        seconds = pace * (context.steps - monitor.step)
        if self.guard.budget_usd is not None:
            usd = context.spent_usd + context.ledger.usd_per_hour() * seconds / SECONDS_PER_HOUR
            usd += context.used_usd_per_step * (context.steps - monitor.step)
            if usd > self.guard.budget_usd:
                self._warned = True
                budget = usd_text(self.guard.budget_usd)
                context.observer.note(
                    f"warning: at the measured {pace:.3f} s per iteration the run would need {usd_text(usd)} USD; "
                    f"it will be stopped, with a checkpoint, below the budget of {budget} USD"
                )
        if self.guard.deadline is not None and context.clock.now() + timedelta(seconds=seconds) > self.guard.deadline:
            self._warned = True
            context.observer.note(
                f"warning: at the measured {pace:.3f} s per iteration the run would end after its deadline; it will be "
                "stopped there with a checkpoint"
            )
