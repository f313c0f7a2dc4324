from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.called import called
from factories.receipts import receipt
from sailor_cloud.run.focus import BilledRun, focus_csv
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.history import GroupBy, PastRun, past_run, past_runs, record_run, sums

START = datetime(2026, 11, 30, 20, tzinfo=UTC)


def past(run_id: str, usd: float, *, owner: str | None = None, at: datetime = START, clean: bool = True) -> PastRun:
    return PastRun(
        run_id=run_id,
        job="job",
        outcome="completed",
        started_at=at,
        ended_at=at,
        steps=1,
        steps_planned=1,
        generations=1,
        nodes=1,
        planned_iteration_s=None,
        measured_iteration_s=None,
        planned_usd=None,
        spent_usd=usd,
        budget_usd=None,
        clean=clean,
        owner=owner,
    )


def test_runs_are_summed_by_owner_and_by_the_month_in_which_they_began() -> None:
    runs = [
        past("a", 1.0, owner="me"),
        past("b", 2.0, owner="me", at=START.replace(month=12), clean=False),
        past("c", 4.0),
    ]
    by_owner = [(one.name, one.runs, one.spent_usd, one.not_clean) for one in sums(runs, GroupBy.OWNER)]
    assert by_owner == [("-", 1, 4.0, 0), ("me", 2, 3.0, 1)]
    assert [(one.name, one.spent_usd) for one in sums(runs, GroupBy.MONTH)] == [("2026-11", 5.0), ("2026-12", 2.0)]


def test_a_history_of_an_earlier_version_is_read_and_gains_owners(tmp_path: Path) -> None:
    folder = RunFolder.create("a-20261130-200000-aaaa", root=tmp_path / "runs")
    record_run(folder, past("a", 1.0))
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        database.execute("ALTER TABLE runs DROP COLUMN owner")
        database.execute("ALTER TABLE runs DROP COLUMN project")
    assert [run.owner for run in past_runs(tmp_path / "runs")] == [None]
    record_run(folder, past("b", 2.0, owner="me"))
    assert {run.run_id: run.owner for run in past_runs(tmp_path / "runs")} == {"a": None, "b": "me"}


def test_a_repeated_teardown_changes_nothing_of_a_run_that_was_clean(tmp_path: Path) -> None:
    folder, first = RunFolder.create("a-20261130-200000-aaaa", root=tmp_path / "runs"), past("a", 1.0)
    first = replace(first, run_id=folder.run_id)
    record_run(folder, first)
    later = START.replace(hour=22)
    record_run(folder, replace(first, ended_at=later, outcome="torn-down", steps=0, generations=0))
    assert (past_run(folder), *past_runs(tmp_path / "runs")) == (first, first)
    # What was found again is not all gone.
    record_run(folder, replace(first, ended_at=later, outcome="torn-down", steps=0, generations=0, clean=False))
    assert past_run(folder) == replace(first, ended_at=later, clean=False)
    record_run(folder, replace(first, ended_at=later, spent_usd=2.0))
    assert past_run(folder) == replace(first, ended_at=later, spent_usd=2.0)


@pytest.mark.parametrize("option", [(), ("--by", "owner"), ("--measurements",)])
def test_a_damaged_history_says_what_to_do(tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "history.sqlite").write_bytes(random.Random(1).randbytes(3000))
    done = called("history", *option, home=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path / 'history.sqlite'} can't be read: file is not a database; move it away" in done.stderr


def test_a_receipt_becomes_rows_of_focus_whose_costs_are_its_lines() -> None:
    run = BilledRun(
        receipt=replace(receipt(), written_at=START.replace(hour=22)), started_at=START, owner="me", project="p"
    )
    rows = list(csv.DictReader(io.StringIO(focus_csv([run]))))
    assert [float(row["BilledCost"]) for row in rows] == [line.usd for line in run.receipt.lines]
    for row in rows:
        assert (row["BillingPeriodStart"], row["BillingPeriodEnd"]) == ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z")
        assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-11-30T20:00:00Z", "2026-11-30T22:00:00Z")
        assert json.loads(row["Tags"])["owner"] == "me"
        assert (row["SubAccountId"], row["BillingCurrency"]) == ("p", "USD")
    assert focus_csv([]) == ""


COLUMNS = Path(__file__).with_name("focus_1_0_columns.csv")
# Names that focus-validator 1.0.0 asks for, beside the standard's.
OF_THE_VALIDATOR = {"ChargeType", "InvoiceIssuer", "Provider", "Publisher", "ResourceID"}
FORMS = {
    "string": r"(?s).+",
    "decimal": r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?",
    "datetime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "currency": r"[A-Z]{3}",
    "json": r"\{.*\}",
}


def focus_faults(rows: list[dict[str, str]]) -> list[str]:
    lines = [line for line in COLUMNS.read_text().splitlines(keepends=True) if not line.startswith("#")]
    columns = {row["column"]: row for row in csv.DictReader(lines)}
    assert len(columns) == 43
    faults = []
    for row in rows:
        faults += [f"{name}: is missing" for name in columns.keys() - row.keys()]
        faults += [f"{name}: is no column" for name in row.keys() - columns.keys() - OF_THE_VALIDATOR]
        for name, column in columns.items():
            value = row.get(name, "")
            if not value:
                faults += [] if column["allows_nulls"] == "yes" else [f"{name}: is empty"]
            elif not re.fullmatch(FORMS[column["type"]], value):
                faults.append(f"{name}: {value} is no {column['type']}")
            elif column["values"] and value not in column["values"].split("|"):
                faults.append(f"{name}: {value} is none of {column['values']}")
    return faults


@pytest.mark.parametrize(("owner", "project"), [("me", "p"), (None, None)])
def test_rows_of_focus_have_the_columns_of_the_standard(owner: str | None, project: str | None) -> None:
    run = BilledRun(receipt=replace(receipt(), written_at=START), started_at=START, owner=owner, project=project)
    bare = BilledRun(receipt=replace(run.receipt, resources=()), started_at=START, owner=owner, project=project)
    rows = list(csv.DictReader(io.StringIO(focus_csv([run, bare]))))
    assert focus_faults(rows) == []
    del rows[0]["RegionName"]
    wrong = {"Extra": "1", "ListCost": "1,5", "ProviderName": "", "ServiceCategory": "Mixed", "ChargePeriodEnd": "2026"}
    assert sorted(fault.split(":")[0] for fault in focus_faults([rows[0] | wrong])) == sorted([*wrong, "RegionName"])


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("spent_usd", "much", "spent_usd of run 'r1' is 'much'"),
        ("spent_usd", float("inf"), "spent_usd of run 'r1' is inf"),
        ("steps", b"7", "steps of run 'r1' is b'7'"),
        ("owner", b"me", "owner of run 'r1' is b'me'"),
        ("measured_iteration_s", "slow", "measured_iteration_s of run 'r1' is 'slow'"),
        ("started_at", "2026-11-21T00:00:00", "started_at of run 'r1' has no time zone"),
    ],
)
@pytest.mark.parametrize("option", [(), ("--by", "owner")])
def test_a_value_that_no_run_has_is_named(
    tmp_path: Path, column: str, value: object, why: str, option: tuple[str, ...]
) -> None:
    folder = RunFolder.create("r1", root=tmp_path / "runs")
    record_run(folder, past("r1", 1.0, owner="me"))
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as database, database:
        database.execute(f"UPDATE runs SET {column} = ?", (value,))
    done = called("history", *option, home=tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path / 'history.sqlite'} can't be read: {why}; move it away" in done.stderr
