from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from factories.cloud_plans import gcp_document
from factories.documents import document
from factories.quick_runs import Notes
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.launch import start
from sailor_cloud.model.job import StateBackend
from sailor_cloud.provision.checks.before_buying import BudgetReservation, reserve
from sailor_cloud.run import budgets

NOW = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path))
    return tmp_path


def test_up_is_refused_beyond_the_budget_of_its_owner_or_project(home: Path) -> None:
    most = budgets.most_usd(gcp_document())
    assert most is not None
    (home / "budgets.yaml").write_text(f'- {{owner: Me@example.org, month: "*", usd: {1.5 * most}}}')
    assert reserve(gcp_document(), "run-1", NOW).held
    with pytest.raises(RequestError, match="end one of run-1"):
        reserve(gcp_document(), "run-2", NOW)
    budgets.release(None, home, "run-1", "2026-11", 0.1)
    reserve(gcp_document(), "run-2", NOW)
    budgets.release(None, home, "run-2", "2026-11", None)
    rows = json.loads((home / "budgets" / "2026-11.json").read_text())["reservations"]
    assert [(row["run_id"], row["spent_usd"]) for row in rows] == [("run-1", 0.1)]


@pytest.mark.parametrize("month", ["../../x", "2026-13", "*/"])
def test_a_journal_that_names_no_month_releases_nothing(home: Path, month: str) -> None:
    with pytest.raises(ValueError, match="is not a month"):
        budgets.release(None, home, "run-1", month, 0.0)


def test_without_budgets_or_on_this_machine_nothing_is_reserved(home: Path) -> None:
    assert reserve(gcp_document(), "run-1", NOW) == BudgetReservation(held=False, notes=())
    (home / "budgets.yaml").write_text('- {owner: Me@example.org, month: "*", usd: 0}')
    assert not reserve(document(), "run-1", NOW).held
    assert not (home / "budgets").exists()


def test_an_unreadable_bucket_is_reported_and_stops_only_runs_with_budgets(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(budgets, "_RETRY", {"max_retries": 0})
    planned = gcp_document()
    state = StateBackend(bucket="s3://team", region="us-east-1")
    cloud = planned.job.cloud.model_copy(update={"state": state})
    shared = replace(planned, job=planned.job.model_copy(update={"cloud": cloud}))
    (note,) = reserve(shared, "run-1", NOW).notes
    assert "budgets in s3://team are not known" in note
    with monkeypatch.context() as unknown:
        unknown.setattr(budgets, "most_usd", lambda document: None)
        assert "budgets in s3://team are not known" in reserve(shared, "run-1", NOW).notes[0]
    (home / "budgets.yaml").write_text('- {owner: Me@example.org, month: "*", usd: 1000}')
    with pytest.raises(DataError, match="can't be read"):
        reserve(shared, "run-1", NOW)


def test_damaged_budgets_in_the_bucket_stop_everybody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    obstore.put(store, "sailor-cloud/budgets.yaml", b"- {owner: a, month: November, usd: 1}")
    monkeypatch.setattr(budgets, "bucket_book", lambda state: budgets.BucketBook(store=store, prefix=state.prefix))
    cloud = gcp_document().job.cloud.model_copy(update={"state": StateBackend(bucket="gs://team")})
    with pytest.raises(RequestError, match=r"gs://team/sailor-cloud/budgets.yaml: 0: month must be"):
        budgets.budgets_of(cloud, home)


@pytest.mark.parametrize("place", ["RunFolder.create", "RunFolder.write_document", "Journal.append"])
def test_a_failure_before_the_run_begins_releases_its_reservation(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (home / "budgets.yaml").write_text('- {owner: Me@example.org, month: "*", usd: 1000}')
    planned, reserved = gcp_document(), []

    def full(*arguments: object, **options: object) -> None:
        (file,) = (home / "budgets").glob("*.json")
        reserved.extend(json.loads(file.read_text())["reservations"])
        raise OSError("No space left on device")

    monkeypatch.setattr(f"{start.__name__}.{place}", full)
    with pytest.raises(OSError, match="No space left"):
        start.run_document(planned, decoder=None, observer=Notes(), clock=SystemClock())
    assert len(reserved) == 1
    (file,) = (home / "budgets").glob("*.json")
    assert json.loads(file.read_text())["reservations"] == []
