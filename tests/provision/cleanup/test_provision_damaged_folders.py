"""Whatever is lost or damaged of a run's folder, a teardown never claims what it has not seen.

A sample; `make chaos` damages every file in every way.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.storage_faults import (
    NAMED,
    Bought,
    Damage,
    Verdict,
    bought,
    called,
    counted,
    harm,
    judged,
    unwritable,
    without_waiting,
)
from sailor_cloud.model.offer import Provider
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event
from sailor_cloud.run.state import fold
from sailor_cloud.testing.mock_cloud import in_environment

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("damaged folders")]


@pytest.fixture(scope="module", params=[Provider("gcp"), Provider("aws")], ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bought]:
    with without_waiting(), bought(request.param, tmp_path_factory.mktemp("bought")) as found:
        yield found


@pytest.fixture
def run(made: Bought) -> Bought:
    made.again()
    return made


def without(path: Path, word: str) -> None:
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if word not in line))


@pytest.mark.parametrize("command", ["down", "reap"])
def test_without_states_and_without_the_entry_that_names_the_places_all_is_found(run: Bought, command: str) -> None:
    harm(run.path / "terraform", Damage.MISSING)
    without(run.path / "journal.jsonl", "provision_started")
    case = judged(run, command, "no states, no places")
    assert case.verdict is Verdict.GONE, case.text


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("plan.json", Damage.MISSING),
        ("plan.json", Damage.CUT),
        ("journal.jsonl", Damage.MISSING),
        ("journal.jsonl", Damage.CUT),
        ("journal.jsonl", Damage.ZEROS),
        ("ledger.jsonl", Damage.GARBAGE),
        ("terraform", Damage.ZEROS),
    ],
)
def test_down_needs_none_of_its_files(run: Bought, name: str, damage: Damage) -> None:
    harm(run.path / name, damage)
    case = judged(run, "down", f"{name} {damage}")
    assert case.verdict is Verdict.GONE, case.text


def test_a_run_without_known_places_is_not_confirmed_until_the_user_names_them(run: Bought) -> None:
    for name in ("plan.json", "journal.jsonl", "terraform"):
        harm(run.path / name, Damage.MISSING)
    first = called("down", run.run.run.run_id)
    assert first.code == 1
    assert "nothing says where the run bought; --project or --region name the places to search" in " ".join(
        first.text.split()
    )
    assert "are gone" not in first.text
    assert run.left()
    receipt = json.loads((run.path / "receipt.json").read_text())
    assert [place["asked_at"] for place in receipt["asked"] if not place["place"]] == [None]
    second = called("down", run.run.run.run_id, *NAMED)
    assert (second.code, run.left()) == (0, ()), second.text


def test_the_receipt_lists_every_place_and_kind_with_the_time_at_which_it_was_asked(run: Bought) -> None:
    done = called("down", run.run.run.run_id, "--json")
    assert done.code == 0, done.text
    receipt = json.loads((run.path / "receipt.json").read_text())
    where = {"gcp": "my-project", "aws": "us-east-1"}[run.run.provider]
    kinds = {place["kind"] for place in receipt["asked"] if place["place"].endswith(where)}
    named = {row["type"] for row in receipt["resources"] if row["confirmed_by"] == "sweep by tag"}
    assert {"google_compute_instance", "google_compute_network"} <= kinds or {"aws_instance", "aws_vpc"} <= kinds
    assert named
    assert all(place["asked_at"] and not place["problem"] for place in receipt["asked"])
    assert all(place["asked_at"] >= row["created_at"] for place in receipt["asked"] for row in receipt["resources"])


def test_a_bucket_that_the_journal_calls_gone_and_that_is_there_is_reported(run: Bought) -> None:
    journal = run.run.journal()
    for row in fold(journal.entries()).resources:
        journal.append(Event.GONE, resource=row.resource, key=row.key)
    journal.append(Event.TORN_DOWN)
    kept = run.results()
    answer = called("down", run.run.run.run_id)
    assert (answer.code, run.left(), run.results()) == (0, (), kept), answer.text
    assert "; 1 kept on purpose" in answer.text
    again = called("down", run.run.run.run_id)
    assert "; 1 kept on purpose" in again.text


def test_a_region_that_does_not_answer_is_not_confirmed_and_the_others_are(run: Bought) -> None:
    if run.run.provider is Provider("gcp"):
        refused = dict.fromkeys(("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",), "http://127.0.0.1:9")
    else:
        refused = {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
    with in_environment(refused):
        done = called("down", run.run.run.run_id)
    assert done.code == 1
    assert "can't be listed" in done.text
    assert "not confirmed as gone" in done.text
    receipt = json.loads((run.path / "receipt.json").read_text())
    unsure = {row["type"] for row in receipt["resources"] if row["gone_at"] is None}
    assert unsure
    assert all("bucket" in kind for kind in unsure), "what was asked elsewhere, and answered, is confirmed"
    assert called("down", run.run.run.run_id).code == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_a_disk_that_can_not_be_written_to_keeps_no_node_alive(run: Bought, number: int) -> None:
    before = (run.path / "journal.jsonl").read_bytes()
    with unwritable(run.path.parents[1], number):
        done = called("down", run.run.run.run_id)
    assert (done.code, run.left()) == (0, ()), done.text
    assert (run.path / "journal.jsonl").read_bytes() == before
    assert 'journal.jsonl: {"seq":' in done.text, "what can't be written is shown"
    assert "journal.jsonl and ledger.jsonl could not be written to" in done.text
    assert not (run.path / "reserve").exists()


@pytest.mark.parametrize(
    ("first", "verdict"), [("", Verdict.NAMELESS), ("journal.jsonl", Verdict.GONE)], ids=["no file", "no journal"]
)
@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)
def test_a_run_whose_first_entry_can_not_be_written_buys_nothing(
    provider: Provider, first: str, verdict: Verdict, tmp_path: Path
) -> None:
    def full(count: int, where: str) -> None:
        if where.endswith(first):
            raise OSError(errno.ENOSPC, "No space left on device", where)

    with without_waiting(), bought(provider, tmp_path, apply=False) as run:
        with counted(run.path, full), pytest.raises(OSError, match="No space left on device"):
            run.run.apply()
        assert run.untouched()
        assert not (run.path / "terraform").exists()
        case = judged(run, "down", "no first entry")
        assert case.verdict is verdict, case.text


def test_only_one_teardown_works_on_a_run_also_when_its_lock_file_is_deleted(run: Bought) -> None:
    folder = RunFolder(run_id=run.run.run.run_id, path=run.path)
    with folder.lock():
        for _ in range(2):
            second = called("down", folder.run_id)
            assert second.code == 1
            assert "is held by " in second.text
            folder.lock_file.unlink(missing_ok=True)
        assert "left alone: process" in called("reap", "--yes").text
    assert run.left()
    assert judged(run, "down", "afterwards").verdict is Verdict.GONE
