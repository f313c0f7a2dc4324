"""The ledger of a run."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import CostKind
from sailor_cloud.run import ledger as ledger_module
from sailor_cloud.run.appended import kept_lines
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.ledger import Ledger

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)
PRICED = date(2026, 11, 1)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(START)


@pytest.fixture
def ledger(tmp_path: Path, clock: FixedClock) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl", clock)


def open_node(ledger: Ledger, key: str, usd_per_hour: float, *, since: datetime = START) -> None:
    ledger.open_item(
        key,
        kind=CostKind.COMPUTE,
        what=key,
        usd_per_hour=usd_per_hour,
        since=since,
        price_source="list",
        price_as_of=PRICED,
    )


def charge_egress(ledger: Ledger, key: str, gb: float, usd_per_gb: float) -> None:
    ledger.charge(
        key,
        kind=CostKind.EGRESS,
        what=key,
        quantity=gb,
        unit="GB",
        usd_per_unit=usd_per_gb,
        price_source="list",
        price_as_of=PRICED,
        at=START,
    )


def test_a_node_costs_its_seconds_at_its_price(ledger: Ledger) -> None:
    open_node(ledger, "n0", 3.6)
    assert ledger.spent_usd(START + timedelta(seconds=1234)) == 1.234


def test_a_vm_costs_a_minute_at_least(ledger: Ledger, clock: FixedClock) -> None:
    open_node(ledger, "n0", 3.6)
    assert ledger.spent_usd() == 0.06
    ledger.close_item("n0", at=START + timedelta(seconds=5))
    assert ledger.spent_usd(START + timedelta(days=1)) == 0.06


def test_a_closed_node_costs_nothing_more_and_an_open_one_does(ledger: Ledger, clock: FixedClock) -> None:
    open_node(ledger, "n0", 36.0)
    open_node(ledger, "n1", 3.6)
    ledger.close_item("n0", at=START + timedelta(seconds=100))
    clock.instant = START + timedelta(seconds=1000)
    assert ledger.spent_usd() == 1.0 + 1.0
    assert ledger.usd_per_hour() == 3.6
    assert ledger.projected_usd(START + timedelta(seconds=2000)) == 1.0 + 2.0


def test_tenths_add_up_exactly(ledger: Ledger) -> None:
    for number in range(10):
        open_node(ledger, f"n{number}", 0.1)
    assert ledger.spent_usd(START + timedelta(hours=3)) == 3.0
    assert sum([0.1] * 10) * 3 != 3.0


def test_egress_is_charged_once_per_key(ledger: Ledger) -> None:
    charge_egress(ledger, "a-b", 12.5, 0.01)
    charge_egress(ledger, "a-b", 12.5, 0.01)
    charge_egress(ledger, "b-a", 2.0, 0.02)
    assert ledger.spent_usd() == 0.165


def test_a_second_opening_keeps_the_first_price_and_time(ledger: Ledger) -> None:
    open_node(ledger, "n0", 3.6)
    open_node(ledger, "n0", 7.2, since=START + timedelta(hours=1))
    assert ledger.spent_usd(START + timedelta(hours=1)) == 3.6


def reprice(ledger: Ledger, key: str, usd_per_hour: float, *, hours: float) -> bool:
    at = START + timedelta(hours=hours)
    return ledger.reprice(key, usd_per_hour=usd_per_hour, at=at, price_source="newer", price_as_of=at.date())


def test_a_changed_price_counts_from_its_record_on(ledger: Ledger) -> None:
    open_node(ledger, "n0", 3.0)
    open_node(ledger, "n1", 1.0)
    assert reprice(ledger, "n0", 5.0, hours=2.0)
    # 2 h at 3, 1 h at 5 and 3 h at 1 USD.
    assert ledger.spent_usd(START + timedelta(hours=3)) == 14.0
    assert ledger.projected_usd(START + timedelta(hours=4)) == 20.0
    assert ledger.usd_per_hour() == 6.0
    ledger.close_item("n0", at=START + timedelta(hours=3))
    assert ledger.spent_usd(START + timedelta(hours=4)) == 15.0
    assert ledger.usd_per_hour() == 1.0


def test_each_price_of_a_thing_has_a_line(ledger: Ledger) -> None:
    open_node(ledger, "n0", 3.0)
    reprice(ledger, "n0", 5.0, hours=2.0)
    first, second = ledger.lines(START + timedelta(hours=3))
    assert (first.quantity, first.usd_per_unit, first.usd, first.price_source, first.open) == (
        2.0,
        3.0,
        6.0,
        "list",
        False,
    )
    assert (second.quantity, second.usd_per_unit, second.usd, second.price_source, second.open) == (
        1.0,
        5.0,
        5.0,
        "newer",
        True,
    )
    assert (second.key, second.what, second.kind) == (first.key, first.what, first.kind)
    ledger.close_item("n0", at=START + timedelta(hours=1))
    first, second = ledger.lines(START + timedelta(hours=3))
    assert [(line.quantity, line.usd, line.open) for line in (first, second)] == [(1.0, 3.0, False), (0.0, 0.0, False)]


def test_only_another_price_of_something_open_is_taken(ledger: Ledger) -> None:
    open_node(ledger, "n0", 3.0)
    assert not reprice(ledger, "n0", 3.0, hours=1.0)
    assert not reprice(ledger, "n1", 5.0, hours=1.0)
    ledger.close_item("n0", at=START + timedelta(hours=1))
    assert not reprice(ledger, "n0", 5.0, hours=1.0)
    assert ledger.spent_usd(START + timedelta(hours=2)) == 3.0


def test_the_least_that_is_billed_is_paid_at_the_price_of_its_time(ledger: Ledger) -> None:
    # 36 s at 100 USD/h and 24 s at 200 USD/h are a minute.
    open_node(ledger, "n0", 100.0)
    reprice(ledger, "n0", 200.0, hours=0.01)
    assert ledger.spent_usd(START) == pytest.approx(1.0 + 24 / 18)


def test_prices_apply_in_the_order_of_their_records_whatever_the_clock_does(ledger: Ledger) -> None:
    open_node(ledger, "n0", 1.0)
    reprice(ledger, "n0", 2.0, hours=3.0)
    reprice(ledger, "n0", 4.0, hours=2.0)
    assert ledger.spent_usd(START + timedelta(hours=4)) == 3.0 + 4.0
    reprice(ledger, "n0", 8.0, hours=-1.0)
    assert ledger.spent_usd(START + timedelta(hours=4)) == 3.0 + 8.0


def test_closing_what_never_was_opened_changes_nothing(ledger: Ledger) -> None:
    ledger.close_item("n0", at=START)
    open_node(ledger, "n0", 3.6)
    assert ledger.usd_per_hour() == 3.6


def test_lines_say_what_was_paid_for(ledger: Ledger) -> None:
    charge_egress(ledger, "a-b", 12.5, 0.01)
    open_node(ledger, "n0", 3.6)
    ledger.close_item("n0", at=START + timedelta(hours=2))
    node, egress = ledger.lines(START + timedelta(hours=5))
    assert (node.kind, node.quantity, node.unit, node.usd_per_unit, node.usd, node.open) == (
        CostKind.COMPUTE,
        2.0,
        "h",
        3.6,
        7.2,
        False,
    )
    assert (egress.quantity, egress.unit, egress.usd, egress.open) == (12.5, "GB", 0.125, False)
    assert {line.price_as_of for line in (node, egress)} == {PRICED}


def test_an_empty_ledger_has_spent_nothing(ledger: Ledger) -> None:
    assert (ledger.spent_usd(), ledger.usd_per_hour(), ledger.lines()) == (0.0, 0.0, ())


def test_lines_are_those_of_now_unless_a_time_is_given(ledger: Ledger, clock: FixedClock) -> None:
    open_node(ledger, "n0", 3.6)
    clock.instant = START + timedelta(hours=2)
    (line,) = ledger.lines()
    assert line.quantity == 2.0


def test_a_ledger_that_is_opened_again_continues(ledger: Ledger, clock: FixedClock) -> None:
    open_node(ledger, "n0", 3.6)
    with open(ledger.path, "ab") as file:
        file.write(b'{"record": "closed", "key"')
    again = Ledger(ledger.path, clock)
    again.close_item("n0", at=START + timedelta(hours=1))
    assert again.spent_usd(START + timedelta(hours=9)) == 3.6


def test_related_records_are_written_together_and_count_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    append = ledger_module.append_line

    def noted(path: Path, line: str, *, or_keep: bool) -> None:
        written.append(line)
        append(path, line, or_keep=or_keep)

    monkeypatch.setattr(ledger_module, "append_line", noted)
    with ledger.batch():
        open_node(ledger, "n0", 3.6)
        open_node(ledger, "n0", 9.9)
        with ledger.batch():
            open_node(ledger, "n1", 7.2)
        assert written == []
    assert len(written) == 1
    assert ledger.usd_per_hour() == pytest.approx(10.8)
    with ledger.batch():
        pass
    with contextlib.suppress(KeyError), ledger.batch():
        ledger.close_item("n1", at=START)
        raise KeyError("what was noted before is written anyway")
    assert len(written) == 2
    assert ledger.usd_per_hour() == 3.6


def test_the_work_for_a_fleet_grows_with_its_nodes_and_not_with_their_square(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    item = ledger_module._item

    def noted(raw: dict[str, Any], later: list[Any], until: datetime | None) -> Any:
        parsed.append(raw["key"])
        return item(raw, later, until)

    monkeypatch.setattr(ledger_module, "_item", noted)
    for number in range(40):
        open_node(ledger, f"n{number:02d}", 1.0)
    for number in range(40):
        ledger.close_item(f"n{number:02d}", at=START + timedelta(hours=1))
    assert ledger.spent_usd(START + timedelta(hours=9)) == 40.0
    assert len(parsed) <= 4 * 40


@given(
    prices=st.lists(st.decimals(min_value=0, max_value=100, places=4), min_size=1, max_size=6),
    seconds=st.integers(min_value=60, max_value=10**6),
)
def test_spending_is_the_sum_of_the_lines(
    tmp_path_factory: pytest.TempPathFactory, prices: list[float], seconds: int
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "ledger.jsonl", FixedClock(START))
    for number, price in enumerate(prices):
        open_node(ledger, f"n{number}", float(price))
    now = START + timedelta(seconds=seconds)
    assert ledger.spent_usd(now) == pytest.approx(sum(line.usd for line in ledger.lines(now)), abs=1e-9)
    assert ledger.spent_usd(now) <= ledger.spent_usd(now + timedelta(seconds=1))


def test_use_until_a_past_time_is_what_a_bill_of_that_day_can_contain(ledger: Ledger, clock: FixedClock) -> None:
    hour = timedelta(hours=1)
    open_node(ledger, "a", 2.0)
    ledger.reprice("a", usd_per_hour=3.0, at=START + hour, price_source="spot", price_as_of=PRICED)
    open_node(ledger, "b", 1.0)
    ledger.close_item("b", at=START + hour)
    open_node(ledger, "late", 100.0, since=START + 3 * hour)
    # Two hours of a at two prices, one hour of b; what began later is in no bill yet, and neither is traffic.
    charge_egress(ledger, "egress", 1.0, 0.5)
    assert ledger.used_usd(START + 2 * hour) == pytest.approx(2.0 + 3.0 + 1.0)
    assert ledger.used_usd(START + hour / 2) == pytest.approx(1.0 + 0.5)
    assert ledger.used_usd(START) == 0.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("usd_per_hour", -1.0),
        ("usd_per_hour", True),
        ("what", []),
        ("part", 1e308),
        ("minimum_s", -60),
        ("minimum_s", 1e308),
    ],
)
def test_a_line_that_is_no_bill_is_skipped_and_reported(tmp_path: Path, field: str, value: object) -> None:
    """A negative price would hide what others cost."""
    path = tmp_path / "ledger.jsonl"
    raw = {"record": "opened", "key": "node/n0", "kind": "compute", "what": "n0", "part": "", "usd_per_hour": 1.0}
    raw |= {"minimum_s": 60.0, "since": START.isoformat(), "price_source": "hand", "price_as_of": "2026-11-20"}
    path.write_text(json.dumps(raw) + "\n")
    assert Ledger(path, FixedClock(START)).damage() == ()
    path.write_text(json.dumps(raw) + "\n" + json.dumps({**raw, "key": "node/n1", field: value}) + "\n")
    ledger = Ledger(path, FixedClock(START + timedelta(hours=2)))
    assert ledger.spent_usd() == 2.0
    assert [line.key for line in ledger.lines()] == ["node/n0"]
    assert ledger.damage() == (f"1 lines of {path} can't be read: more may have been spent than the ledger says",)


@pytest.mark.parametrize(
    "damage",
    [
        {"record": "charged", "key": "egress/1", "quantity": -1.0},
        {"record": "charged", "key": "egress/1", "usd_per_unit": "dear"},
        {"record": "repriced", "key": "node/n0", "usd_per_hour": -0.5},
        {"record": "repriced", "key": "node/n0", "at": "yesterday"},
        {"record": "closed", "key": "node/n0", "at": None},
        {"record": "closed", "key": ["node/n0"]},
    ],
    ids=str,
)
def test_a_damaged_line_of_any_kind_is_skipped_and_reported(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, FixedClock(START + timedelta(hours=2)))
    open_node(ledger, "node/n0", 1.0)
    charge_egress(ledger, "egress/0", gb=10, usd_per_gb=0.1)
    half_past = START + timedelta(minutes=30)
    ledger.reprice("node/n0", usd_per_hour=3.0, at=half_past, price_source="list", price_as_of=PRICED)
    ledger.close_item("node/n0", at=START + timedelta(hours=1))
    lines = path.read_text().splitlines()
    (like,) = [raw for raw in map(json.loads, lines) if raw["record"] == damage["record"]]
    with path.open("a") as file:
        file.write(json.dumps({**like, **damage}) + "\n")
    again = Ledger(path, FixedClock(START + timedelta(hours=2)))
    assert again.damage() == (f"1 lines of {path} can't be read: more may have been spent than the ledger says",)
    assert again.spent_usd() == 3.0


def test_failed_writes_of_a_ledger_stop_a_run_but_no_teardown(tmp_path: Path, clock: FixedClock) -> None:
    folder = RunFolder(run_id="r", path=tmp_path)
    folder.ledger_file.mkdir()
    with pytest.raises(IsADirectoryError):
        open_node(Ledger.of(folder, clock), "n0", 1.0)
    open_node(Ledger.of(folder, clock, or_keep=True), "n0", 1.0)
    assert [json.loads(line)["key"] for line in kept_lines(folder.ledger_file)] == ["n0"]


def test_a_ledger_that_can_not_be_written_to_says_so_unless_it_is_a_teardowns(
    tmp_path: Path, clock: FixedClock
) -> None:
    nowhere = tmp_path / "nowhere" / "ledger.jsonl"
    with pytest.raises(FileNotFoundError):
        open_node(Ledger(nowhere, clock), "a", 1.0)
    kept = Ledger(nowhere, clock, or_keep=True)
    open_node(kept, "a", 1.0)
    assert kept.usd_per_hour() == 1.0


def test_a_price_of_zero_is_valid_and_an_infinite_one_is_damage(tmp_path: Path, clock: FixedClock) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, clock)
    open_node(ledger, "free", 0.0)
    assert (ledger.paid_by_time(), ledger.damage()) == (("free",), ())
    path.write_text(path.read_text().replace("0.0", "Infinity", 1).replace("free", "endless"))
    ledger = Ledger(path, clock)
    assert ledger.paid_by_time() == ()
    assert ledger.damage() == (f"1 lines of {path} can't be read: more may have been spent than the ledger says",)


def test_damage_is_forgotten_once_the_file_is_restarted(tmp_path: Path, clock: FixedClock) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, clock)
    open_node(ledger, "a", 1.0)
    with path.open("a") as file:
        file.write("garbage\n")
    assert len(ledger.damage()) == 1
    path.write_text("")
    assert (ledger.paid_by_time(), ledger.damage()) == ((), ())
