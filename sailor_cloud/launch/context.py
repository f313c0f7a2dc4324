"""The state of one run that the parts of the controller share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.clock import Clock
from sailor_cloud.launch.checkpoint_place import named_place
from sailor_cloud.launch.fleet.fleet import Fleet, Link
from sailor_cloud.launch.replanning.refusals import Choice, blocked, refusals
from sailor_cloud.launch.replanning.replan import Policy, Search
from sailor_cloud.launch.spend import egress, usage
from sailor_cloud.launch.spend.charges import total_usd
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.stopping import StopSignal
from sailor_cloud.launch.telemetry.generation_log import EventRecord, RecordedGeneration, recorded_generations
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.launch.telemetry.notify import Notifier
from sailor_cloud.launch.telemetry.trackers import Trackers
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.bookkeeping import is_node_key
from sailor_cloud.provision.rendering.data import bucket_of
from sailor_cloud.provision.terraform.progress import Progress, Step
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Journal, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import LaunchOptions
from sailor_cloud.run.progress import Observer, ResourceNews, RunProgress
from sailor_cloud.units import usd_text


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The state of one run. `job_document` is the plan that the user confirmed, `document` the newest plan."""

    folder: RunFolder
    job_document: PlanDocument
    document: PlanDocument
    decoder: Decoder | None
    clock: Clock
    observer: Observer
    options: LaunchOptions
    fleet: Fleet
    search: Search | None
    policy: Policy
    notifier: Notifier
    started_at: datetime
    expires_at: datetime
    # Reads new prices of some providers and regions; None if prices can't change.
    refresh: Callable[[tuple[Provider, ...], tuple[str, ...]], None] | None = None
    prices: UsagePrices = field(default_factory=UsagePrices)
    trackers: Trackers = field(default_factory=Trackers)
    stop: StopSignal = field(default_factory=StopSignal)
    applied_nodes: dict[str, ReachableNode] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    monitor: Monitor | None = None
    calibrated_s: float | None = None
    activity: str = "starting"
    # All offers seen so far, and the newest prices of everything that the job may buy.
    offers: dict[str, Offer] = field(default_factory=dict)
    quotes: dict[str, Offer] = field(default_factory=dict)
    # Whether the run had to leave the confirmed plan; then it tries to return to a better one.
    settled: bool = False
    # The rate of nodes that were requested and are not in the ledger yet.
    pending_usd_per_hour: float = 0.0
    pending_since: datetime | None = None
    _journal: Journal | None = None
    _ledger: Ledger | None = None
    _record: EventRecord | None = None
    _leg: RecordedGeneration | None = None
    _ended_legs: tuple[RecordedGeneration, ...] = ()
    _spent: tuple[datetime, float] | None = None

    @property
    def journal(self) -> Journal:
        return Journal.of(self.folder, self.clock)

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger.of(self.folder, self.clock)
        return self._ledger

    @property
    def record(self) -> EventRecord:
        if self._record is None:
            self._record = EventRecord(self.folder)
        return self._record

    @property
    def runs_command(self) -> bool:
        return self.job_document.job.run is not None

    @property
    def steps(self) -> int | None:
        """The last step; None if a command did not state one."""
        return self.job_document.job.training.steps

    def begin_leg(self, monitor: Monitor) -> None:
        """Start to follow a new generation; all earlier ones have ended."""
        self.monitor = monitor
        # Keep this plan: `document` may soon be another one.
        self._leg = RecordedGeneration(generation=monitor.generation, document=self.document, monitor=monitor)
        self._ended_legs = tuple(
            leg for leg in recorded_generations(self.folder) if leg.generation < monitor.generation
        )

    @property
    def used_usd(self) -> float:
        """The cost of all generations' traffic and checkpoints so far; the ledger gets it at the end."""
        found = recorded_generations(self.folder) if self._leg is None else (*self._ended_legs, self._leg)
        return total_usd(usage.charges(self.job_document, found, self.prices, until=self.clock.now()))

    @property
    def used_usd_per_step(self) -> float:
        """The cost of one iteration's traffic: measured if possible, else planned."""
        if self._leg is None:
            return egress.usd_per_step(self.document)
        return egress.measured_usd_per_step(self._leg, self.prices)

    @property
    def pending_usd(self) -> float:
        """The possible cost so far of nodes that are being created."""
        if self.pending_since is None:
            return 0.0
        return self.pending_usd_per_hour * (self.clock.now() - self.pending_since) / timedelta(hours=1)

    @property
    def charged_until(self) -> datetime:
        """Until when nodes can have cost money: they shut themselves down at their TTL."""
        return min(self.clock.now(), self.expires_at)

    @property
    def spent_usd(self) -> float:
        """The run's total spend; the ledger is read at most once a second, because displays ask often."""
        now = self.clock.now()
        if self._spent is None or abs((now - self._spent[0]).total_seconds()) >= 1.0:
            self._spent = (now, self._ledger_usd())
        return self._spent[1] + self.used_usd + self.pending_usd

    def _ledger_usd(self) -> float:
        """Return the ledger's sum. Reservations and gateways still cost money after the TTL, unlike nodes."""
        until = self.charged_until
        beyond_h = (self.clock.now() - until) / timedelta(hours=1)
        rate = self.ledger.usd_per_hour(counted=lambda key: not is_node_key(key)) if beyond_h > 0.0 else 0.0
        return self.ledger.spent_usd(until) + rate * beyond_h

    @property
    def saved_step(self) -> int:
        """The step from which a new generation would continue."""
        recorded = [leg.monitor.checkpoint_step for leg in recorded_generations(self.folder)]
        return max((step for step in recorded if step is not None), default=0)

    @property
    def checkpoints_dir(self) -> str:
        """The place of checkpoints: the job's, else the inventory's, else the run's own folder or bucket."""
        if (chosen := named_place(self.job_document.job)) is not None:
            return chosen
        if (inventory := self.job_document.job.cloud.inventory) is not None:
            return f"{inventory.checkpoints}/{self.folder.run_id}"
        bucket = self.own_bucket
        return str(self.folder.checkpoints_dir) if bucket is None else f"{bucket}/checkpoints"

    @property
    def own_bucket(self) -> str | None:
        """The URL of the bucket that the run made for itself; None if it needs none."""
        job, home = self.job_document.job, self.job_document.home.provider
        scheme = sold_by(home).bucket_scheme
        if job.checkpoint.to is not None or scheme is None:
            return None
        bucket = bucket_of(job, self.folder.run_id, home)
        assert bucket is not None, "a job that names no place gets a bucket"
        return f"{scheme}://{bucket.name}"

    def remaining(self) -> Remaining:
        """Return what remains of iterations, money and time."""
        limits = self.job_document.constraints
        now = self.clock.now()
        end = self.expires_at
        if limits.deadline is not None:
            end = min(end, self.started_at + timedelta(seconds=limits.deadline))
        spent = self._ledger_usd() + self.used_usd + self.pending_usd
        usd = None if limits.budget_usd is None else limits.budget_usd - spent
        return Remaining(
            steps=None if self.steps is None else max(1, self.steps - self.saved_step),
            usd=usd,
            usd_alone=usd,
            seconds=(end - now).total_seconds(),
            life_s=(self.expires_at - now).total_seconds(),
        )

    def blocked(self) -> dict[Choice, float]:
        """Return the refused choices that must not be tried yet, with the remaining seconds."""
        return blocked(refusals(read(self.folder.journal_file)), self.clock.now())

    def show(self, activity: str) -> None:
        self.activity = activity
        self.observer.progress(self.progress())

    def on_resource(self, progress: Progress) -> None:
        price = "" if progress.usd_per_hour is None else f", {usd_text(progress.usd_per_hour)} USD/h"
        problem = f", {progress.problem}" if progress.problem else ""
        state = f"{progress.action} {progress.step}{price}{problem}"
        self.observer.resource(ResourceNews(key=progress.key, state=state, done=progress.step is Step.DONE))

    def progress(self) -> RunProgress:
        """Return the current state for displays."""
        monitor = self.monitor
        return RunProgress(
            activity=self.activity,
            step=monitor.step if monitor else 0,
            steps=self.steps,
            loss=(math.nan if monitor.loss_is_nan else monitor.loss) if monitor else None,
            unigram_entropy=monitor.unigram_entropy if monitor else None,
            tokens_per_s=monitor.tokens_per_s if monitor else None,
            planned_iteration_s=self.document.iteration_s,
            calibrated_iteration_s=self.calibrated_s,
            measured_iteration_s=monitor.measured_iteration_s if monitor else None,
            spent_usd=self.spent_usd,
            budget_usd=self.job_document.constraints.budget_usd,
            expires_at=self.expires_at,
            nodes=len(self.links),
            verification=monitor.verification if monitor else None,
        )
