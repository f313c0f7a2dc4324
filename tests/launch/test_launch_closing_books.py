"""What the receipt of a run says, and what becomes of its reservation, once its resources were removed."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.documents import NOW, PRICED, cost_line, costing, document
from factories.storage_faults import forget, unwritable
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch import teardown
from sailor_cloud.launch.spend import gateways
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.teardown import close_books, tear_down
from sailor_cloud.launch.telemetry import generation_log
from sailor_cloud.launch.telemetry.generation_log import EventRecord
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.job import GcpAccount, StateBackend
from sailor_cloud.model.parts import traffic_part
from sailor_cloud.provision.cleanup.teardown import TeardownResult
from sailor_cloud.run import budgets, history
from sailor_cloud.run.budgets import LocalBook, Reservation
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.options import Ending
from sailor_cloud.run.receipt import AskedPlace, Receipt, ReceiptResource

END = NOW + timedelta(minutes=10)
TRAFFIC = cost_line(
    CostKind.EGRESS, traffic_part("local-a", "local-b", "local-a"), quantity=1.0, usd_per_unit=1.0, unit="GB"
)
NODE = ReceiptResource(
    provider="local", region="r", zone="z", type="node", name="n0", created_at=NOW, gone_at=END, confirmed_by="a look"
)
GONE = TeardownResult(resources=(NODE,), remaining=(), problems=())
MONTH = f"{NOW:%Y-%m}"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that did ten of a thousand steps of 6 s on a node of 6 USD/h, in ten minutes."""
    made = RunFolder.create("tiny-20261121-051313-a1b2", root=tmp_path / "runs")
    made.write_document(planned())
    journal, ledger = Journal.of(made, FixedClock(NOW)), Ledger.of(made, FixedClock(NOW))
    journal.append(Event.RUN_CREATED, job="of the journal", budget_month=MONTH, budget_state=None)
    journal = Journal.of(made, FixedClock(NOW + timedelta(seconds=5)))
    journal.append(Event.GENERATION_STARTED, generation=1)
    journal.append(Event.CALIBRATED, iteration_s=5.5)
    ledger.open_item(
        "n0", kind=CostKind.COMPUTE, what="n0", usd_per_hour=6.0, since=NOW, price_source="hand", price_as_of=PRICED
    )
    ledger.close_item("n0", at=END)
    steps = [{"event": "step", "generation": 1, "step": step, "loss": 1.0, "iteration_s": 6.0} for step in range(1, 11)]
    EventRecord(made).append("n0", steps)
    reserved = Reservation(run_id=made.run_id, owner="me", project=None, month=MONTH, reserved_usd=50.0)
    LocalBook(folder=tmp_path / "budgets").change(MONTH, lambda before: (*before, reserved))
    return made


def planned() -> PlanDocument:
    return costing(document(steps=1000), TRAFFIC)


def closed(
    folder: RunFolder, destroyed: TeardownResult = GONE, plan: PlanDocument | None = None, **options: Any
) -> Receipt:
    settings = {"clock": FixedClock(END), "prices": UsagePrices(), "ending": Ending.COMPLETED, **options}
    return close_books(folder, plan or planned(), destroyed, **settings)


def counted(folder: RunFolder) -> float:
    """What is counted for the run in its month."""
    rows = json.loads((folder.path.parent.parent / "budgets" / f"{MONTH}.json").read_text())["reservations"]
    (row,) = rows
    return float(row["reserved_usd"] if row["spent_usd"] is None else row["spent_usd"])


def test_a_receipt_shows_actual_next_to_planned_figures(folder: RunFolder) -> None:
    told = closed(folder)
    # An hour's sixth of 6 USD and ten steps of 0.001 USD of traffic.
    assert told.spent_usd == pytest.approx(1.01)
    assert (told.job, told.outcome, told.written_at, told.budget_usd) == (planned().job.name, "completed", END, 1.0)
    assert (told.resources, told.problems, told.kept, told.clean) == ((NODE,), (), (), True)
    assert [line.kind for line in told.lines] == [CostKind.COMPUTE, CostKind.EGRESS]
    rows = {row.what: (row.estimate, row.actual) for row in told.comparisons}
    prediction = planned().prediction
    assert prediction is not None
    assert rows["iteration, as planned"] == (prediction.iteration_s_replay, 6.0)
    assert rows["iteration, as calibrated"] == (5.5, 6.0)
    training = rows["training time, for 1 % of the steps"]
    assert training == (pytest.approx(prediction.iteration_s_replay * 1000 * 0.01), pytest.approx(60.0))
    whole = rows["whole run, for 1 % of the steps"]
    assert whole[1] == pytest.approx(1.01)
    parts = [row for row in told.comparisons if row.unit == "USD" and not row.what.startswith("whole run")]
    assert whole[0] == pytest.approx(sum(part.estimate or 0.0 for part in parts))
    assert Receipt.from_json(folder.receipt_file.read_bytes()) == told


def test_a_plan_that_can_t_be_read_again_is_a_problem_of_the_receipt(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error", str(path))

    Journal.of(folder, FixedClock(END)).append(Event.GENERATION_STARTED, generation=1, plan_sha256="0")
    monkeypatch.setattr(generation_log, "sha256_of", unreadable)
    told = closed(folder)
    (why,) = told.problems
    assert why.startswith("the plan is not compared with the journal: ")
    assert folder.receipt_file.is_file()


def test_the_bill_of_one_hour_is_no_estimate_of_a_run(folder: RunFolder) -> None:
    plan = planned()
    assert plan.cost is not None
    told = closed(folder, plan=replace(plan, cost=replace(plan.cost, total_usd=None, worst_case_usd=None)))
    rows = [row for row in told.comparisons if row.unit == "USD"]
    assert {row.estimate for row in rows} == {None}
    assert rows[-1].actual == pytest.approx(told.spent_usd)


def test_the_receipt_releases_the_reservation_and_history_remembers_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: list[history.PastRun] = []
    monkeypatch.setattr(history, "record_run", lambda folder, past: remembered.append(past))
    closed(folder)
    assert counted(folder) == pytest.approx(1.01)
    (past,) = remembered
    assert (past.steps, past.steps_planned, past.generations, past.nodes) == (10, 1000, 1, 1)
    assert (past.started_at, past.ended_at, past.clean, past.measured_iteration_s) == (NOW, END, True, 6.0)
    assert (past.spent_usd, past.budget_usd, past.planned_usd) == (pytest.approx(1.01), 1.0, 0.003)
    assert (past.outcome, past.project) == ("completed", None)
    plan = planned()
    cloud = plan.job.cloud.model_copy(update={"gcp": GcpAccount(project="my-project")})
    closed(folder, plan=replace(plan, job=plan.job.model_copy(update={"cloud": cloud})))
    assert remembered[1].project == "my-project"
    folder.journal_file.unlink()
    closed(folder)
    assert remembered[2].started_at == END


def test_a_run_that_did_more_steps_than_it_was_to_is_compared_with_all_of_them(folder: RunFolder) -> None:
    prediction = planned().prediction
    assert prediction is not None
    plan = costing(document(steps=4), TRAFFIC)
    rows = {row.what: row.estimate for row in closed(folder, plan=plan).comparisons}
    assert rows["training time"] == pytest.approx(prediction.iteration_s_replay * 4)


def test_the_newest_plan_is_what_a_run_is_remembered_by(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (leg,) = teardown.recorded_generations(folder)
    prediction = planned().prediction
    assert prediction is not None
    newest = replace(planned(), prediction=replace(prediction, iteration_s_replay=9.0))
    monkeypatch.setattr(teardown, "recorded_generations", lambda folder: (leg, replace(leg, document=newest)))
    remembered: list[history.PastRun] = []
    monkeypatch.setattr(history, "record_run", lambda folder, past: remembered.append(past))
    rows = {row.what: row.estimate for row in closed(folder).comparisons}
    assert (rows["iteration, as planned"], remembered[0].planned_iteration_s) == (9.0, 9.0)


def test_a_run_without_a_generation_has_done_nothing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "recorded_generations", lambda folder: ())
    remembered: list[history.PastRun] = []
    monkeypatch.setattr(history, "record_run", lambda folder, past: remembered.append(past))
    rows = {row.what: row.estimate for row in closed(folder).comparisons}
    assert (rows["training time, for 0 % of the steps"], rows["whole run, for 0 % of the steps"]) == (0.0, 0.0)
    assert remembered[0].steps == 0
    unpredicted = closed(folder, plan=replace(planned(), prediction=None))
    assert unpredicted.problems == ()
    assert unpredicted.comparisons[0].estimate is None
    assert remembered[1].planned_iteration_s is None


def test_the_share_of_the_steps_is_reported_in_whole_percent(folder: RunFolder) -> None:
    told = closed(folder, plan=costing(document(steps=11), TRAFFIC))
    assert "training time, for 91 % of the steps" in {row.what for row in told.comparisons}


def test_a_reservation_in_a_bucket_is_released_there(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[tuple[object, ...]] = []
    monkeypatch.setattr(budgets, "release", lambda *arguments: released.append(arguments))
    first, *rest = folder.journal_file.read_text().splitlines()
    row = json.loads(first)
    row["data"]["budget_state"] = {"bucket": "gs://states", "prefix": "p"}
    folder.journal_file.write_text("\n".join([json.dumps(row), *rest, ""]))
    forget()
    closed(folder)
    ((where, *_),) = released
    assert where == StateBackend(bucket="gs://states", prefix="p")


def test_gateways_are_in_the_books_before_the_receipt_is_written(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keep(ledger: Ledger, *_: object) -> None:
        ledger.open_item(
            "nat",
            kind=CostKind.ADDRESS,
            what="nat",
            usd_per_hour=6.0,
            since=NOW,
            price_source="hand",
            price_as_of=PRICED,
        )

    monkeypatch.setattr(gateways, "charge_gateways", keep)
    assert closed(folder).spent_usd == pytest.approx(2.01)


def test_a_ledger_on_a_full_disk_counts_what_was_used(folder: RunFolder) -> None:
    with unwritable(folder.path.parent):
        told = closed(folder)
    assert told.spent_usd == pytest.approx(1.01)
    assert "ledger.jsonl could not be written to; this receipt holds what they lack" in told.problems


@pytest.mark.parametrize(
    "left",
    [
        replace(GONE, resources=(replace(NODE, gone_at=None),)),
        replace(GONE, asked=(AskedPlace(provider="gcp", place="p", kind="k", asked_at=NOW, problem="no answer"),)),
        replace(GONE, asked=(AskedPlace(provider="", place="", kind="", asked_at=None, problem="nobody knows"),)),
    ],
    ids=["lives", "silent", "unknown"],
)
def test_while_something_may_live_the_reservation_stays(folder: RunFolder, left: TeardownResult) -> None:
    assert not closed(folder, left).clean
    assert counted(folder) == 50.0
    assert closed(folder).clean
    assert counted(folder) == pytest.approx(1.01)


def test_without_the_plan_the_reservation_is_still_released(folder: RunFolder) -> None:
    told = close_books(folder, None, GONE, clock=FixedClock(END), prices=UsagePrices(), ending=Ending.TORN_DOWN)
    assert told.problems == ("without the plan, traffic and storage that were used are not in the ledger",)
    assert (told.job, told.budget_usd, told.comparisons, told.spent_usd) == ("of the journal", None, (), 1.0)
    assert counted(folder) == 1.0


def test_without_plan_and_journal_the_job_is_the_runs_own_name(folder: RunFolder) -> None:
    folder.journal_file.unlink()
    told = close_books(folder, None, GONE, clock=FixedClock(END), prices=UsagePrices(), ending=Ending.TORN_DOWN)
    assert told.job == "tiny"


def test_without_its_journal_a_run_is_released_in_the_month_of_its_id_and_next_to_the_states_of_its_plan(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.journal_file.unlink()
    closed(folder)
    assert counted(folder) == 1.0
    released: list[tuple[object, ...]] = []
    monkeypatch.setattr(budgets, "release", lambda *arguments: released.append(arguments))
    plan, state = planned(), StateBackend(bucket="gs://states", prefix="p")
    cloud = plan.job.cloud.model_copy(update={"state": state})
    closed(folder, plan=replace(plan, job=plan.job.model_copy(update={"cloud": cloud})))
    assert released == [(state, folder.path.parent.parent, folder.run_id, "2026-11", 1.0)]


def test_a_failure_while_the_books_are_closed_is_a_problem_of_the_receipt(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for owner, name in (
        (teardown, "recorded_generations"),
        (teardown, "_comparisons"),
        (history, "record_run"),
        (budgets, "release"),
    ):
        monkeypatch.setattr(owner, name, fails)
    monkeypatch.setattr(RunFolder, "write_text", fails)
    monkeypatch.setattr(teardown, "kept_lines", lambda path: ("x",) if path == folder.journal_file else ())
    told = closed(folder, replace(GONE, problems=("met before",)))
    full = "No space left on device"
    assert told.problems == (
        "met before",
        f"the ledger lacks what was used: {full}",
        f"estimates are not compared: {full}",
        f"{folder.receipt_file} is not written: {full}",
        f"the run is not in 'sailor-cloud history': {full}",
        f"the reservation for {MONTH} in the budgets is not released: {full}",
        "journal.jsonl could not be written to; this receipt holds what they lack",
    )
    assert told.spent_usd == 1.0
    assert told.clean


def test_a_mistake_in_damaged_files_has_a_name_where_it_has_no_words(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise KeyError

    monkeypatch.setattr(teardown, "recorded_generations", fails)
    assert closed(folder).problems == ("the ledger lacks what was used: KeyError",)


def test_a_run_that_never_trained_compares_with_its_own_plan(folder: RunFolder) -> None:
    (folder.logs_dir / "events.jsonl").unlink()
    rows = {row.what: row for row in closed(folder).comparisons}
    assert rows["iteration, as planned"].actual is None
    assert rows["training time, for 0 % of the steps"].actual is None
    assert rows["training time, for 0 % of the steps"].estimate == 0.0


def test_a_run_without_a_number_of_steps_is_compared_as_a_whole(folder: RunFolder) -> None:
    rows = {row.what: row.estimate for row in closed(folder, plan=costing(document(steps=None), TRAFFIC)).comparisons}
    assert rows["training time"] is None
    assert "whole run" in rows
    plain = {row.what: row.estimate for row in closed(folder, plan=replace(planned(), cost=None)).comparisons}
    assert plain["whole run, for 1 % of the steps"] is None


@pytest.mark.parametrize(("ending", "fetched"), [(Ending.COMPLETED, True), (Ending.FAILED, False)])
def test_results_are_fetched_of_a_run_that_came_to_its_end(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, ending: Ending, fetched: bool
) -> None:
    given: list[Any] = []

    def destroyed(folder: RunFolder, **options: Any) -> TeardownResult:
        given.append(options)
        return GONE

    monkeypatch.setattr(teardown, "destroy", destroyed)
    assert tear_down(folder, planned(), clock=FixedClock(END), ending=ending).clean
    assert (given[0]["before_data"] is not None) is fetched
    tear_down(folder, None, clock=FixedClock(END), ending=ending)
    assert given[1]["before_data"] is None
