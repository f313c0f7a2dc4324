"""A run whose journal lacks what was bought is not taken over; a lost ledger is made up for by the journal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from factories.documents import cost_line, costing, document
from factories.quick_runs import Notes
from sailor_cloud.cli.main import cli
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch import start, teardown
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.spend.charges import charge_all
from sailor_cloud.launch.spend.run_costs import run_costs
from sailor_cloud.launch.start import resume_run
from sailor_cloud.launch.telemetry.generation_log import EventRecord, sha256_of, write_plan
from sailor_cloud.launch.watch.status import run_status
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.parts import traffic_part
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.apply.apply import Work, confirm_deleted
from sailor_cloud.provision.bookkeeping import NODE, node_intent, open_node
from sailor_cloud.provision.cleanup import reap
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.report.run.status_text import runs_report
from sailor_cloud.run import journal
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, damage, read
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import fold
from sailor_cloud.units import usd_text
from sailor_cloud.workload import decoder

CLOCK = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that has bought two nodes and trained on them until its controller died."""
    made = RunFolder.create("tiny-20261121-000000-a1b2", root=tmp_path)
    planned = document()
    made.write_document(planned)
    ensure_ssh_key(made)
    written, ledger = Journal.of(made, CLOCK), Ledger.of(made, CLOCK)
    written.append(Event.RUN_CREATED, job="tiny", plan_sha256=sha256_of(made.plan_file))
    written.append(Event.PROVISION_STARTED)
    written.append_all([node_intent(placed) for placed in placed_nodes(planned)])
    for row in fold(read(made.journal_file)).resources:
        written.append(Event.CREATED, resource=NODE, key=row.key)
        open_node(ledger, row.key, row.data, since=CLOCK.now())
    written.append(Event.GENERATION_STARTED, generation=1)
    hello = {"event": "hello", "generation": None, "seq": 1, "node": "n0"}
    event = {"event": "training", "generation": 1, "seq": 2, "node": "n0"}
    (made.logs_dir / "events.jsonl").write_text(f"{json.dumps(hello)}\n{json.dumps(event)}\n")
    return made


def resumed(folder: RunFolder) -> None:
    model = decoder(document().job.model)
    resume_run(folder, decoder=model, observer=Notes(), clock=CLOCK)


def without(word: str) -> Callable[[RunFolder], object]:
    def forget(folder: RunFolder) -> object:
        lines = folder.journal_file.read_text().splitlines(keepends=True)
        return folder.journal_file.write_text("".join(line for line in lines if word not in line))

    return forget


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda folder: folder.journal_file.unlink(), "journal.jsonl is missing"),
        (lambda folder: folder.journal_file.write_bytes(b""), "holds no entry"),
        (lambda folder: folder.journal_file.write_bytes(bytes(5000)), "holds no entry"),
        (lambda folder: folder.journal_file.write_bytes(b"[[" * 50_000), "holds no entry"),
        (without("provision_started"), "lacks entry 2"),
        (without('"event": "created"'), "lacks entry 5"),
        (without("generation_started"), "lacks generation 1, which has trained"),
        (lambda f: f.journal_file.write_bytes(f.journal_file.read_bytes()[:700]), "lacks nodes that the ledger"),
        (lambda folder: folder.ssh_key_file.write_bytes(bytes(400)), "its nodes can't be logged in to"),
        (lambda folder: folder.ssh_key_file.unlink(), "its nodes can't be logged in to"),
        (
            lambda f: f.write_document(replace(document(), ttl_s=1e6)),
            "plan.json is not the plan with which the run began",
        ),
        (lambda folder: folder.plan_file.unlink(), "'sailor-cloud down tiny-20261121-000000-a1b2' removes"),
    ],
)
def test_a_run_with_an_incomplete_history_is_not_continued(
    harm: Callable[[RunFolder], object], message: str, folder: RunFolder
) -> None:
    harm(folder)
    # Another process has not read the journal before.
    journal._READ.clear()
    before = folder.journal_file.read_bytes() if folder.journal_file.exists() else b""
    with pytest.raises(RequestError) as caught:
        resumed(folder)
    assert message in str(caught.value)
    assert "'sailor-cloud down tiny-20261121-000000-a1b2' removes" in str(caught.value)
    assert (folder.journal_file.read_bytes() if folder.journal_file.exists() else b"") == before


@pytest.mark.parametrize(
    ("harm", "file", "message"),
    [
        (lambda folder: folder.journal_file.unlink(), "journal", "journal.jsonl is missing"),
        (without("provision_started"), "journal", "lacks entry 2"),
        (lambda f: f.journal_file.write_bytes(f.journal_file.read_bytes()[:900]), "journal", "lacks nodes that the"),
        (lambda folder: folder.plan_file.write_text("{"), "plan", "plan.json: is not JSON"),
    ],
)
def test_status_and_reap_name_the_file_for_which_a_run_can_only_be_torn_down(
    harm: Callable[[RunFolder], object], file: str, message: str, folder: RunFolder
) -> None:
    assert run_status(folder, clock=CLOCK).damage == ()
    resource = LiveResource(provider="gcp", region="r", type="t", name="x", run_id=folder.run_id)
    assert "'sailor-cloud resume" in reap._judged(folder.run_id, folder, (resource,), CLOCK, None)[0].why
    harm(folder)
    journal._READ.clear()
    found = run_status(folder, clock=CLOCK)
    (damaged,) = found.damage
    assert damaged.file == file
    assert message in damaged.why
    console = Console(file=StringIO(), width=200)
    console.print(runs_report([found], now=CLOCK.now()))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{file} damaged" in shown
    assert "'sailor-cloud down tiny-20261121-000000-a1b2' removes" in " ".join(shown.split())
    assert "resume" not in shown
    leftover, live = reap._judged(folder.run_id, folder, (resource,), CLOCK, None)
    assert not live
    assert message in leftover.why
    assert "resume" not in leftover.why


def test_a_later_generations_plan_is_not_believed_either(folder: RunFolder) -> None:
    told = write_plan(folder, 2, document())
    Journal.of(folder, CLOCK).append(Event.GENERATION_STARTED, generation=2, plan_sha256=told)
    write_plan(folder, 2, replace(document(), ttl_s=1e6))
    with pytest.raises(RequestError, match=r"generations/2\.json is not the plan with which the run began"):
        resumed(folder)


LOST = [None, b"", bytes(300), b'{"record": "opened"}\n3\n', b'{"record": "opened", "key']


def lose_ledger(folder: RunFolder, content: bytes | None) -> None:
    if content is None:
        folder.ledger_file.unlink()
    else:
        folder.ledger_file.write_bytes(content)


@pytest.mark.parametrize("content", LOST)
def test_a_lost_ledger_is_charged_again_from_the_journal(
    content: bytes | None, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*details: object) -> None:
        """The run would continue here."""

    monkeypatch.setattr(start, "_run", nothing)
    later = CLOCK.now() + timedelta(hours=1)
    before = Ledger.of(folder, CLOCK).spent_usd(later)
    assert before > 0
    lose_ledger(folder, content)
    resumed(folder)
    assert Ledger.of(folder, CLOCK).spent_usd(later) == pytest.approx(before)


@pytest.mark.parametrize("content", LOST)
@pytest.mark.parametrize("gone", [False, True])
def test_costs_of_a_lost_ledger_are_those_of_the_journal(content: bytes | None, gone: bool, folder: RunFolder) -> None:
    ended, later = FixedClock(CLOCK.now() + timedelta(hours=1)), FixedClock(CLOCK.now() + timedelta(hours=3))
    part = traffic_part("local-a", "local-b", "local-a")
    traffic = cost_line(CostKind.EGRESS, part, quantity=1.0, usd_per_unit=1.0, unit="GB")
    folder.write_document(costing(document(), traffic))
    step = {"event": "step", "generation": 1, "seq": 3, "step": 1, "loss": 1.0, "iteration_s": 1.0}
    EventRecord(folder).append("n0", [step])
    ledger = Ledger.of(folder, CLOCK)
    if gone:
        for row in fold(read(folder.journal_file)).resources:
            ledger.close_item(f"{NODE}/{row.key}", at=ended.now())
            Journal.of(folder, ended).append(Event.GONE, resource=NODE, key=row.key)
        used = [line for line in run_costs(folder, clock=ended).lines if line.kind is CostKind.EGRESS]
        assert used
        charge_all(ledger, used, at=ended.now())
        Journal.of(folder, ended).append(Event.TORN_DOWN)
    before = run_costs(folder, clock=later)
    lose_ledger(folder, content)
    written = content and folder.ledger_file.read_bytes()
    found = run_costs(folder, clock=later)
    assert found.spent_usd == pytest.approx(before.spent_usd)
    assert found.usd_per_hour == before.usd_per_hour
    assert sorted(line.key for line in found.lines) == sorted(line.key for line in before.lines)
    assert before.damage == ()
    assert {harm.file for harm in found.damage} == {"ledger"}
    assert "ledger.jsonl lacks" in found.damage[-1].why
    assert run_status(folder, clock=later).spent_usd == pytest.approx(before.spent_usd)
    assert (content and folder.ledger_file.read_bytes()) == written
    if gone:
        told = take_down(folder, clock=later)
        assert told.spent_usd == pytest.approx(before.spent_usd)
        assert any("ledger.jsonl lacks" in problem for problem in told.problems)
        assert not any(line.open for line in told.lines)
        again = take_down(folder, clock=later)
        assert not any("ledger.jsonl lacks" in problem for problem in again.problems)


def test_a_line_that_a_crash_cut_off_is_no_damage_once_somebody_continued(folder: RunFolder) -> None:
    with folder.journal_file.open("a") as file:
        file.write('{"seq": 8, "ts": "2026-11-')
    assert damage(folder.journal_file, cut=False) == ""
    assert "is cut off after entry 7" in damage(folder.journal_file)
    Journal.of(folder, CLOCK).append(Event.RUN_RESUMED)
    assert damage(folder.journal_file) == ""


@pytest.mark.parametrize(
    "line",
    [
        {"seq": 9, "ts": "2026-11-21T00:00:00", "event": "gone", "resource": "node", "key": "n0", "data": {}},
        {"seq": "x", "ts": "2026-11-21T00:00:00+00:00", "event": "gone", "resource": "node", "key": "n0", "data": {}},
        {"seq": 9, "ts": "2026-11-21T00:00:00+00:00", "event": "gone", "resource": "node", "key": "n0", "data": 3},
        {"seq": 1e300, "ts": "2026-11-21T00:00:00+00:00", "event": "gone", "resource": "", "key": "", "data": {}},
        {"seq": -1, "ts": "2026-11-21T00:00:00+00:00", "event": "gone", "resource": "", "key": "", "data": {}},
        [1, 2],
        None,
    ],
)
def test_a_line_that_no_version_has_written_is_no_entry(line: Any, folder: RunFolder) -> None:
    before = read(folder.journal_file)
    with folder.journal_file.open("a") as file:
        file.write(json.dumps(line) + "\n")
    assert read(folder.journal_file) == before


def cheaper(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**line, "usd_per_hour": line["usd_per_hour"] / 100}]


def closed_at_once(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [line, {"record": "closed", "key": line["key"], "at": line["since"]}]


def a_year_ahead(line: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**line, "since": line["since"].replace("2026", "2027")}]


@pytest.mark.parametrize("change", [cheaper, closed_at_once, a_year_ahead])
def test_a_ledger_that_charges_less_than_the_journal_is_corrected_for_all_who_spend(
    change: Callable[[dict[str, Any]], list[dict[str, Any]]], folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*details: object) -> None:
        """The run would continue here."""

    monkeypatch.setattr(start, "_run", nothing)
    later = FixedClock(CLOCK.now() + timedelta(hours=1))
    before = run_costs(folder, clock=later)
    lines = [json.loads(line) for line in folder.ledger_file.read_text().splitlines()]
    changed = [each for line in lines for each in change(line)]
    folder.ledger_file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    found = run_costs(folder, clock=later)
    assert (found.spent_usd, found.usd_per_hour) == (pytest.approx(before.spent_usd), before.usd_per_hour)
    assert "charges less than the journal for node/n0" in found.damage[-1].why
    # The budget guard projects from the ledger itself.
    notes = Notes()
    resume_run(folder, decoder=decoder(document().job.model), observer=notes, clock=CLOCK)
    assert any("charges less than the journal for node/n0" in text for text in notes.lines)
    assert Ledger.of(folder, later).spent_usd() == pytest.approx(before.spent_usd)
    assert run_costs(folder, clock=later).damage == ()
    told = take_down(folder, clock=later)
    assert told.spent_usd == pytest.approx(before.spent_usd)
    assert not any(line.open for line in told.lines)


def test_a_node_closed_too_early_is_charged_until_the_journal_calls_it_gone(folder: RunFolder) -> None:
    ended = FixedClock(CLOCK.now() + timedelta(hours=1))
    ledger = Ledger.of(folder, CLOCK)
    for row in fold(read(folder.journal_file)).resources:
        ledger.close_item(f"{NODE}/{row.key}", at=ended.now())
        Journal.of(folder, ended).append(Event.GONE, resource=NODE, key=row.key)
    Journal.of(folder, ended).append(Event.TORN_DOWN)
    later = FixedClock(CLOCK.now() + timedelta(hours=5))
    before = run_costs(folder, clock=later)
    assert before.damage == ()
    text = folder.ledger_file.read_text()
    folder.ledger_file.write_text(text.replace('"at": "2026-11-21T01:00', '"at": "2026-11-21T00:20'))
    found = run_costs(folder, clock=later)
    assert (found.spent_usd, found.usd_per_hour) == (pytest.approx(before.spent_usd), 0.0)
    assert {harm.file for harm in found.damage} == {"ledger"}


def test_nodes_cost_nothing_after_their_ttl(folder: RunFolder) -> None:
    expires = CLOCK.now() + timedelta(hours=1)
    Journal.of(folder, CLOCK).append(Event.PROVISION_STARTED, expires_at=expires.isoformat())
    before = run_costs(folder, clock=FixedClock(expires - timedelta(seconds=1)))
    assert before.usd_per_hour > 0
    found = run_costs(folder, clock=FixedClock(expires + timedelta(hours=9)))
    assert (found.spent_usd, found.usd_per_hour) == (pytest.approx(before.spent_usd, rel=1e-3), 0.0)
    assert not any(line.open for line in found.lines)
    told = take_down(folder, clock=FixedClock(expires + timedelta(hours=9)))
    assert told.spent_usd == pytest.approx(found.spent_usd)


def test_a_lost_ledger_charges_no_node_after_its_ttl(folder: RunFolder) -> None:
    expires = CLOCK.now() + timedelta(hours=2)
    Journal.of(folder, CLOCK).append(Event.PROVISION_STARTED, expires_at=expires.isoformat())
    found_gone = FixedClock(CLOCK.now() + timedelta(hours=72))
    before = take_down(folder, clock=found_gone).spent_usd
    lose_ledger(folder, None)
    assert run_costs(folder, clock=found_gone).spent_usd == pytest.approx(before)


class Killed(BaseException):
    """The process ends here."""


def killed(*arguments: object, **options: object) -> None:
    raise Killed


@pytest.mark.parametrize("resumes", [False, True])
def test_a_crash_before_the_ledger_is_closed_charges_nothing_more(
    resumes: bool, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, later = FixedClock(CLOCK.now() + timedelta(hours=1)), FixedClock(CLOCK.now() + timedelta(hours=11))
    before = run_costs(folder, clock=ended).spent_usd
    gone = frozenset(row.key for row in fold(read(folder.journal_file)).live)
    work = SimpleNamespace(journal=Journal.of(folder, ended), ledger=Ledger.of(folder, ended), clock=ended)

    def end() -> None:
        if resumes:
            confirm_deleted(cast("Work", work), gone, frozenset(), confirmed_by="a sweep")
        else:
            take_down(folder, clock=ended)

    with monkeypatch.context() as crash:
        crash.setattr(Ledger, "close_item", killed)
        with pytest.raises(Killed):
            end()
    assert run_costs(folder, clock=later).spent_usd == pytest.approx(before)
    # The removal alone closes the ledger, too.
    teardown.destroy(folder, clock=later)
    assert Ledger.of(folder, later).usd_per_hour() == 0
    assert take_down(folder, clock=later).spent_usd == pytest.approx(before)


def test_a_finished_run_s_ledger_is_compared_with_its_receipt(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(folder.path.parent.parent))
    line = cost_line(
        CostKind.EGRESS, traffic_part("local-a", "local-b", "local-a"), quantity=1.0, usd_per_unit=1.0, unit="GB"
    )
    folder.write_document(costing(document(), line))
    step = {"event": "step", "generation": 1, "seq": 3, "step": 1, "loss": 1.0, "iteration_s": 1.0}
    EventRecord(folder).append("n0", [step])
    told, later = take_down(folder, clock=CLOCK), FixedClock(CLOCK.now() + timedelta(hours=1))
    assert run_costs(folder, clock=later).damage == ()
    written = folder.ledger_file.read_text()
    for content in (written * 2, "".join(written.splitlines(keepends=True)[:-1])):
        folder.ledger_file.write_text(content)
        found = run_costs(folder, clock=later)
        (harm,) = found.damage
        assert harm.file == "ledger"
        assert f"receipt.json has {usd_text(told.spent_usd)}" in harm.why
        assert f"adds up to {usd_text(found.spent_usd)} USD" in harm.why
    # Traffic is charged again from the agents' events.
    assert not any("receipt.json has" in problem for problem in take_down(folder, clock=later).problems)
    folder.ledger_file.write_text(written * 2)
    assert any("receipt.json has" in problem for problem in take_down(folder, clock=later).problems)
    folder.receipt_file.write_text("{")
    assert "receipt.json can't be read" in run_costs(folder, clock=later).damage[0].why


def test_a_repeated_teardown_may_charge_more_than_the_receipt_has(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(folder.path.parent.parent))
    first = take_down(folder, clock=CLOCK)
    destroy = teardown.destroy

    def fetched(*arguments: Any, **options: Any) -> Any:
        price = {"usd_per_unit": 0.1, "price_source": "hand", "price_as_of": CLOCK.now().date()}
        ledger = Ledger.of(folder, CLOCK)
        ledger.charge("r", kind=CostKind.EGRESS, what="r", quantity=5.0, unit="GB", at=CLOCK.now(), **price)
        return destroy(*arguments, **options)

    monkeypatch.setattr(teardown, "destroy", fetched)
    again = take_down(folder, clock=CLOCK)
    assert again.spent_usd == pytest.approx(first.spent_usd + 0.5)
    assert again.problems == first.problems


def test_a_teardown_by_a_plan_that_is_not_the_run_s_own_says_so(folder: RunFolder) -> None:
    own = document()
    constraints = own.constraints.model_copy(update={"budget_usd": 1e6})
    folder.write_document(replace(own, constraints=constraints))
    problems = take_down(folder, clock=CLOCK).problems
    assert any("plan.json is not the plan with which the run began; its budget" in problem for problem in problems)


@pytest.mark.parametrize("command", ["status", "cost"])
def test_a_command_about_a_damaged_run_exits_with_1(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    made = RunFolder.create("tiny-20261121-000000-a1b2", root=tmp_path / "runs")
    made.write_document(document())
    Journal.of(made, CLOCK).append(Event.RUN_CREATED, job="tiny")
    assert [results(command, "tiny", *json) for json in ([], ["--json"])] == [0, 0]
    made.plan_file.write_text("{")
    assert [results(command, "tiny", *json) for json in ([], ["--json"])] == [1, 1]


def results(*arguments: str) -> object:
    """Return the exit code that a command returns."""
    return CliRunner().invoke(cli, arguments, standalone_mode=False).return_value
