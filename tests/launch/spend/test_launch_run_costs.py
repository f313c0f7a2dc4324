"""What a run has cost and will cost, from its folder alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from factories.documents import NOW, PRICED, cost_line, costing, document
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.spend import usage
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.spend.run_costs import run_costs
from sailor_cloud.launch.telemetry.generation_log import EventRecord, events_file, write_plan
from sailor_cloud.launch.watch.status import run_status
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.parts import traffic_part
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger, LedgerLine
from sailor_cloud.run.progress import RunCosts

# The plan's traffic costs 0.001 USD per step.
TRAFFIC = cost_line(
    CostKind.EGRESS, traffic_part("local-a", "local-b", "local-a"), quantity=1.0, usd_per_unit=1.0, unit="GB"
)


def planned(*, steps: int | None = 1000) -> PlanDocument:
    return costing(document(steps=steps), TRAFFIC)


def costs(
    root: Path, *steps: int, plan: PlanDocument | None = None, gone: bool = False, prices: UsagePrices | None = None
) -> RunCosts:
    """A node of 6 USD/h for ten minutes; each generation has done so many steps of 6 s."""
    folder = RunFolder.create("costs", root=root)
    folder.write_document(plan or planned())
    clock = FixedClock(NOW)
    journal, ledger = Journal.of(folder, clock), Ledger.of(folder, clock)
    ledger.open_item(
        "n0", kind=CostKind.COMPUTE, what="n0", usd_per_hour=6.0, since=NOW, price_source="hand", price_as_of=PRICED
    )
    record = EventRecord(folder)
    for generation, done in enumerate(steps, start=1):
        journal.append(Event.GENERATION_STARTED, generation=generation)
        if generation > 1:
            write_plan(folder, generation, plan or planned())
        told = [
            {"event": "step", "generation": generation, "step": step, "loss": 1.0, "iteration_s": 6.0}
            for step in range(1, done + 1)
        ]
        record.append("n0", told)
    if gone:
        journal.append(Event.TORN_DOWN, problems=[])
    clock.instant = NOW + timedelta(minutes=10)
    return run_costs(folder, clock=clock, prices=prices)


def test_a_run_s_costs_are_its_hours_its_traffic_and_what_the_rest_will_take(tmp_path: Path) -> None:
    found = costs(tmp_path, 10)
    # 1.00 USD of the node and 0.01 USD of traffic; 990 steps of 0.01 and 0.001 USD are left.
    assert (found.spent_usd, found.usd_per_hour, found.egress_usd) == (pytest.approx(1.01), 6.0, pytest.approx(0.01))
    assert found.projected_usd == pytest.approx(1.01 + 990 * 0.011)
    assert [line.kind for line in found.lines] == [CostKind.COMPUTE, CostKind.EGRESS]
    assert (found.run_id, found.planned_usd, found.budget_usd) == ("costs", 0.003, 1.0)


def test_a_newer_generation_that_has_trained_says_what_is_left(tmp_path: Path) -> None:
    # Both have sent their traffic; the newest one is at step 20.
    assert costs(tmp_path, 10, 20, 0).projected_usd == pytest.approx(1.03 + 980 * 0.011)


def test_nothing_is_left_after_the_last_step(tmp_path: Path) -> None:
    found = costs(tmp_path, 20, plan=planned(steps=20))
    assert found.projected_usd == found.spent_usd


def test_without_a_pace_or_a_number_of_steps_the_rest_is_unknown(tmp_path: Path) -> None:
    assert costs(tmp_path / "slow", 2).projected_usd is None
    assert costs(tmp_path / "endless", 10, plan=planned(steps=None)).projected_usd is None


def test_a_run_that_is_gone_costs_what_its_ledger_says(tmp_path: Path) -> None:
    found = costs(tmp_path, 10, gone=True)
    assert (found.spent_usd, found.projected_usd, found.egress_usd) == (1.0, 1.0, 0.0)


def test_costs_of_a_plan_without_a_bill_stand_alone(tmp_path: Path) -> None:
    assert costs(tmp_path, plan=replace(document(), cost=None)).planned_usd is None


def test_given_prices_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[UsagePrices] = []

    def charges(document: PlanDocument, legs: object, prices: UsagePrices, *, until: object) -> tuple[LedgerLine, ...]:
        seen.append(prices)
        return ()

    monkeypatch.setattr(usage, "charges", charges)
    given = UsagePrices()
    costs(tmp_path / "given", prices=given)
    costs(tmp_path / "none")
    assert seen[0] is given
    assert isinstance(seen[1], UsagePrices)


@pytest.mark.parametrize("kept", [0, 4])
def test_traffic_of_steps_that_only_the_journal_has_is_charged(tmp_path: Path, kept: int) -> None:
    before = costs(tmp_path, 10)
    assert before.damage == ()
    folder, clock = RunFolder.open("costs", root=tmp_path), FixedClock(NOW + timedelta(minutes=10))
    Journal.of(folder, clock).append(Event.CHECKPOINT_SAVED, path="/c/step-10", step=10)
    lines = events_file(folder).read_text().splitlines(keepends=True)
    events_file(folder).write_text("".join(lines[:kept]))
    found = run_costs(folder, clock=clock)
    assert (found.egress_usd, found.spent_usd) == (pytest.approx(before.egress_usd), pytest.approx(before.spent_usd))
    assert [harm.file for harm in found.damage] == ["events"]
    assert run_status(folder, clock=clock).step == 10
    receipt = take_down(folder, clock=clock)
    assert any(line.kind is CostKind.EGRESS for line in receipt.lines)
    assert any("events.jsonl" in problem for problem in receipt.problems)


def test_a_lost_checkpoint_in_a_bucket_is_charged_as_planned(tmp_path: Path) -> None:
    line = cost_line(CostKind.CHECKPOINT, "kept", quantity=1.0, usd_per_unit=1.0, unit="GiB-month")
    plan = costing(document(steps=10), line)
    assert costs(tmp_path, 10, plan=plan).spent_usd == pytest.approx(1.0)
    folder, clock = RunFolder.open("costs", root=tmp_path), FixedClock(NOW + timedelta(minutes=10))
    Journal.of(folder, clock).append(Event.CHECKPOINT_SAVED, path="gs://b/step-10", step=10)
    assert run_costs(folder, clock=clock).spent_usd == pytest.approx(2.0)
