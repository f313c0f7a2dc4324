"""The guard of a run's money and time, under a clock that a test moves by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.documents import NOW, PRICED, cost_line, costing, document
from sailor_cloud.clock import Clock, FixedClock
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.fleet import SimulatedFleet
from sailor_cloud.launch.simulation.market import Trace
from sailor_cloud.launch.simulation.replay import SilentObserver
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.launch.telemetry.generation_log import new_monitor
from sailor_cloud.launch.telemetry.notify import Notice
from sailor_cloud.launch.watch.spending_guard import BudgetGuard, SpendingWatch
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.model.parts import traffic_part
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.options import Ending, LaunchOptions
from sailor_cloud.workload import decoder

RESERVE_S = 60.0
# The deadline is given apart from the TTL here, so that a test moves one of them.
NEVER = timedelta(days=365)


@dataclass
class Told:
    """What a webhook was told."""

    notices: list[tuple[Notice, str, str]] = field(default_factory=list)

    def notify(self, notice: Notice, *, run: str, text: str, **details: Any) -> None:
        self.notices.append((notice, run, text))

    def close(self) -> None:
        pass


@dataclass
class Run:
    """A run that pays 6 USD an hour, 0.10 USD a minute, for one node since NOW."""

    context: RunContext
    clock: FixedClock
    notes: list[str]
    told: Told
    watch: SpendingWatch

    def at(self, minutes: float) -> Run:
        """Let the guard look after so many minutes."""
        self.clock.instant = NOW + timedelta(minutes=minutes)
        self.watch.check()
        return self

    @property
    def ending(self) -> Ending | None:
        return self.context.stop.ending

    def paced(self, *, iterations: int, iteration_s: float, steps: int | None = None) -> None:
        """Let a generation have done so many iterations."""
        monitor = new_monitor(self.context.document, 1)
        for number in range(1, iterations + 1):
            monitor.apply("n0", {"event": "step", "step": number, "loss": 1.0, "iteration_s": iteration_s})
        self.context.begin_leg(monitor)


def run_of(
    root: Path,
    *,
    budget_usd: float | None = 10.0,
    deadline_minutes: float | None = None,
    ttl: timedelta = NEVER,
    plan: PlanDocument | None = None,
    folder: RunFolder | None = None,
    clock: Clock | None = None,
) -> Run:
    planned = plan or document(steps=1000)
    limits = {"budget_usd": budget_usd, "deadline": None if deadline_minutes is None else 60.0 * deadline_minutes}
    planned = replace(planned, constraints=planned.constraints.model_copy(update=limits))
    hand = FixedClock(NOW)
    notes: list[str] = []
    told = Told()
    where = folder or RunFolder.create("guarded", root=root)
    world = World(clock=SimulatedClock(NOW), trace=Trace(times_s=(0.0,), devices={}))
    context = RunContext(
        folder=where,
        job_document=planned,
        document=planned,
        decoder=decoder(planned.job.model),
        clock=clock or hand,
        observer=SilentObserver(notes.append),
        options=LaunchOptions(),
        fleet=SimulatedFleet(world=world, folder=where),
        search=None,
        policy=Policy.NEVER,
        notifier=told,
        started_at=NOW,
        expires_at=NOW + ttl,
    )
    guard = BudgetGuard.of(planned, started_at=NOW, reserve_s=RESERVE_S)
    context.ledger.open_item(
        "node/n0",
        kind=CostKind.COMPUTE,
        what="n0",
        usd_per_hour=6.0,
        since=NOW,
        price_source="hand",
        price_as_of=PRICED,
    )
    return Run(context, hand, notes, told, SpendingWatch(context, guard, 60.0))


def with_traffic(*, gb: float, steps: int = 1000) -> PlanDocument:
    """A plan whose traffic costs so many USD: 1 USD per GB."""
    part = traffic_part("local-a", "local-b", "local-a")
    return costing(document(steps=steps), cost_line(CostKind.EGRESS, part, quantity=gb, usd_per_unit=1.0, unit="GB"))


def test_a_run_ends_before_the_budget_by_what_its_teardown_costs(tmp_path: Path) -> None:
    # Of 10 USD the last minute, 0.10 USD, is kept: 9.90 USD are spent after 99 minutes.
    run = run_of(tmp_path)
    assert run.at(98.99).ending is None
    assert run.at(99).ending is Ending.BUDGET
    assert run.notes[-1] == "the budget is reached: tearing down"


def test_a_run_ends_before_its_nodes_end_themselves_by_the_time_of_its_teardown(tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=None, ttl=timedelta(minutes=60))
    assert run.at(58.99).ending is None
    assert run.at(59).ending is Ending.BUDGET


@pytest.mark.parametrize(
    ("deadline_minutes", "ending"), [(60.0, Ending.DEADLINE), (60.01, Ending.BUDGET), (None, Ending.BUDGET)]
)
def test_a_ttl_is_the_deadline_s_or_else_the_budget_s(
    deadline_minutes: float | None, ending: Ending, tmp_path: Path
) -> None:
    run = run_of(tmp_path, deadline_minutes=deadline_minutes, ttl=timedelta(minutes=60))
    assert run.at(59).ending is ending


def test_a_run_ends_at_its_deadline(tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=None, deadline_minutes=30)
    assert run.at(29.99).ending is None
    assert run.at(30).ending is Ending.DEADLINE
    assert run.notes[-1] == "the time limit is reached: tearing down"


def test_requests_that_are_not_in_the_ledger_yet_count(tmp_path: Path) -> None:
    # From minute 10 on 0.20 USD a minute more: 0.1 (t + 1) + 0.2 (t - 10) are 10 USD after 39 2/3 minutes.
    run = run_of(tmp_path)
    run.context.pending_usd_per_hour, run.context.pending_since = 12.0, NOW + timedelta(minutes=10)
    assert run.at(39.6).ending is None
    assert run.at(39.7).ending is Ending.BUDGET


def test_traffic_that_was_used_counts(tmp_path: Path) -> None:
    # 500 of 1,000 steps have cost 4 of 8 USD. Until the nodes are gone two more of 60 s may be done, 0.016 USD.
    # With the node's reserve of 0.10 USD that leaves 5.884 USD.
    run = run_of(tmp_path, plan=with_traffic(gb=8.0))
    run.paced(iterations=500, iteration_s=60.0)
    assert run.at(58.83).ending is None
    assert run.at(58.85).ending is Ending.BUDGET


def test_the_last_steps_before_the_end_count_by_their_pace(tmp_path: Path) -> None:
    # 10 steps have cost 0.1 USD. Steps of 0.6 s: 101 more until the end, 1.01 USD; the node's reserve is 0.10 USD.
    run = run_of(tmp_path, plan=with_traffic(gb=10.0))
    run.paced(iterations=10, iteration_s=0.6)
    assert run.at(87.8).ending is None
    assert run.at(87.9).ending is Ending.BUDGET


def test_without_a_pace_no_last_steps_count(tmp_path: Path) -> None:
    run = run_of(tmp_path, plan=with_traffic(gb=10.0))
    run.paced(iterations=2, iteration_s=0.6)
    assert run.at(98.7).ending is None
    assert run.at(98.9).ending is Ending.BUDGET


@pytest.mark.parametrize(
    ("minutes", "notices"),
    [
        (49.99, []),
        (50, [Notice.BUDGET_50]),
        (79.99, [Notice.BUDGET_50]),
        (80, [Notice.BUDGET_50, Notice.BUDGET_80]),
        (98.99, [Notice.BUDGET_50, Notice.BUDGET_80]),
        (99, [Notice.BUDGET_50, Notice.BUDGET_80, Notice.BUDGET_100]),
    ],
)
def test_half_four_fifths_and_all_of_the_budget_are_reported(
    minutes: float, notices: list[Notice], tmp_path: Path
) -> None:
    run = run_of(tmp_path).at(minutes)
    assert [notice for notice, _, _ in run.told.notices] == notices


def test_shares_of_the_budget_are_reported_once_with_their_amounts(tmp_path: Path) -> None:
    run = run_of(tmp_path).at(50).at(51).at(80).at(81).at(99)
    texts = [
        "50 % of the budget is spent: 5.00 of 10.00 USD",
        "80 % of the budget is spent: 8.00 of 10.00 USD",
        "the budget of 10.00 USD is used up, except for the teardown",
    ]
    assert [(run_id, text) for _, run_id, text in run.told.notices] == [("guarded", text) for text in texts]
    assert run.notes[:3] == texts


def test_a_run_that_ends_by_its_deadline_has_not_used_up_its_budget(tmp_path: Path) -> None:
    run = run_of(tmp_path, deadline_minutes=30).at(30)
    assert run.told.notices == []


def test_without_a_budget_no_share_of_it_is_reported(tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=None, ttl=timedelta(minutes=60)).at(59)
    assert run.ending is Ending.BUDGET
    assert run.told.notices == []


def test_a_controller_that_took_over_does_not_report_a_share_again(tmp_path: Path) -> None:
    first = run_of(tmp_path).at(50)
    second = run_of(tmp_path, folder=first.context.folder).at(80)
    assert [notice for notice, _, _ in second.told.notices] == [Notice.BUDGET_80]


def test_a_pace_that_the_budget_does_not_cover_is_warned_of_once(tmp_path: Path) -> None:
    # 1.00 USD after 10 minutes, and 0.01 USD of traffic; the other 990 steps take 99 minutes: 9.90 USD, and 0.99 USD.
    run = run_of(tmp_path, plan=with_traffic(gb=1.0))
    run.paced(iterations=10, iteration_s=6.0)
    run.at(10).at(11)
    assert run.notes == [
        "warning: at the measured 6.000 s per iteration the run would need 11.90 USD; it will be stopped, with a "
        "checkpoint, below the budget of 10.00 USD"
    ]
    assert run.ending is None


@pytest.mark.parametrize(("budget_usd", "warned"), [(10.89, True), (10.9, False)])
def test_a_pace_is_judged_by_what_the_run_will_have_cost(budget_usd: float, warned: bool, tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=budget_usd)
    run.paced(iterations=10, iteration_s=6.0)
    assert bool(run.at(10).notes) is warned


@pytest.mark.parametrize(("deadline_minutes", "warned"), [(108.99, True), (109.0, False)])
def test_a_pace_that_the_deadline_does_not_cover_is_warned_of_once(
    deadline_minutes: float, warned: bool, tmp_path: Path
) -> None:
    run = run_of(tmp_path, budget_usd=None, deadline_minutes=deadline_minutes)
    run.paced(iterations=10, iteration_s=6.0)
    text = (
        "warning: at the measured 6.000 s per iteration the run would end after its deadline; it will be stopped "
        "there with a checkpoint"
    )
    assert run.at(10).at(10).notes == ([text] if warned else [])


def test_nothing_is_warned_of_before_the_pace_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=5.0, deadline_minutes=45)
    run.at(1)
    run.paced(iterations=2, iteration_s=60.0)
    assert run.at(2).notes == []


def test_a_run_that_ends_warns_of_nothing_more(tmp_path: Path) -> None:
    run = run_of(tmp_path, budget_usd=None, deadline_minutes=30)
    run.paced(iterations=10, iteration_s=6.0)
    assert run.at(30).notes == ["the time limit is reached: saving a checkpoint and tearing down"]


@pytest.mark.parametrize("access", list(NetworkAccess))
def test_gateways_of_private_networks_are_in_the_books_before_the_budget_is_compared(
    access: NetworkAccess, tmp_path: Path
) -> None:
    planned = document(steps=1000)
    cloud = planned.job.cloud.model_copy(update={"network": access})
    run = run_of(tmp_path, plan=replace(planned, job=planned.job.model_copy(update={"cloud": cloud})))
    nat = {"resource": "aws_nat_gateway", "key": "aws-us-east-1/aws_nat_gateway.run"}
    journal = Journal.of(run.context.folder, FixedClock(NOW))
    journal.append(Event.CREATE_INTENDED, provider=Provider("aws"), region="us-east-1", stack="aws", **nat)
    journal.append(Event.CREATED, **nat)
    run.at(1)
    assert (run.context.ledger.usd_per_hour() > 6.0) is (access is NetworkAccess.PRIVATE)


def test_the_guard_looks_again_until_the_run_ends(tmp_path: Path) -> None:
    clock = SimulatedClock(NOW)
    run = run_of(tmp_path, clock=clock)
    run_simulated(run.watch.run(), clock)
    assert run.ending is Ending.BUDGET
    assert clock.now() == NOW + timedelta(minutes=100)


def test_nothing_is_spent_on_nodes_after_their_ttl(tmp_path: Path) -> None:
    # Six hours after a TTL of one hour, 6 of 10 USD are spent.
    run = run_of(tmp_path, ttl=timedelta(hours=1)).at(360)
    assert run.ending is Ending.BUDGET
    assert run.context.spent_usd == pytest.approx(6.0)
    assert run.context.remaining().usd == pytest.approx(4.0)
    assert [notice for notice, _, _ in run.told.notices] == [Notice.BUDGET_50, Notice.BUDGET_100]


def test_reservations_and_gateways_cost_money_after_the_ttl(tmp_path: Path) -> None:
    run = run_of(tmp_path, ttl=timedelta(hours=1))
    price = {"usd_per_hour": 0.5, "since": NOW, "price_source": "hand", "price_as_of": PRICED}
    run.context.ledger.open_item("capacity/c", kind=CostKind.COMPUTE, what="c", **price)
    run.context.ledger.open_item("node/n0/disk", kind=CostKind.DISK, what="disk", **price)
    run.clock.instant = NOW + timedelta(hours=2)
    assert run.context.spent_usd == pytest.approx(6.0 + 0.5 + 2 * 0.5)
    # Displays read the ledger again.
    run.clock.instant = NOW + timedelta(hours=3)
    assert run.context.spent_usd == pytest.approx(6.0 + 0.5 + 3 * 0.5)
    assert run.context.remaining().usd == pytest.approx(2.0)
