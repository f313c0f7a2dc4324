"""A place for checkpoints serves one run at a time, and none whose training it already holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from factories.documents import NOW, document, job
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.checkpoint_place import check_checkpoint_place
from sailor_cloud.model.job import Job
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_runtime.manifest import FileSum, encode


def _job(to: str | Path | None) -> Job:
    checkpoint = job().checkpoint.model_copy(update={"to": None if to is None else str(to)})
    training = job().training.model_copy(update={"steps": 20})
    return job().model_copy(update={"checkpoint": checkpoint, "training": training})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_CLOUD_HOME", str(tmp_path / "home"))


def test_a_place_where_another_run_saves_is_refused_until_that_run_is_over(tmp_path: Path) -> None:
    other = RunFolder.create("sweep-a-20261121-051313-a1b2")
    other.write_document(replace(document(), job=_job("gs://mine/run")))
    journal = Journal.of(other, FixedClock(NOW))
    journal.append(Event.RUN_CREATED, job="sweep-a")
    with pytest.raises(RequestError, match=r"is gs://mine/run, where run sweep-a-20261121-051313-a1b2 saves, which is"):
        check_checkpoint_place(_job("gs://mine/run"), now=NOW)
    for unused in (None, "gs://mine/run-2", tmp_path):
        check_checkpoint_place(_job(unused), now=NOW)
    journal.append(Event.TRAINING_FAILED, outcome="failed", message="")
    check_checkpoint_place(_job("gs://mine/run"), now=NOW)


def test_another_spelling_of_a_place_is_that_place(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    (tmp_path / "link").symlink_to("place")
    spellings = [("gs://mine/run", "gs://mine/run/"), (tmp_path / "place", tmp_path / "link")]
    for number, (used, asked) in enumerate(spellings):
        other = RunFolder.create(f"sweep-{number}-20261121-051313-a1b2")
        other.write_document(replace(document(), job=_job(used)))
        Journal.of(other, FixedClock(NOW)).append(Event.RUN_CREATED, job=f"sweep-{number}")
        with pytest.raises(RequestError, match=f"end it with 'sailor-cloud down {other.run_id}'"):
            check_checkpoint_place(_job(asked), now=NOW)


def test_a_run_whose_nodes_have_reached_their_end_does_not_hold_its_place() -> None:
    other = RunFolder.create("sweep-a-20261121-051313-a1b2")
    other.write_document(replace(document(), job=_job("gs://mine/run")))
    journal = Journal.of(other, FixedClock(NOW))
    journal.append(Event.RUN_CREATED, job="sweep-a")
    journal.append(Event.PROVISION_STARTED, expires_at=(NOW + timedelta(hours=1)).isoformat())
    with pytest.raises(RequestError, match="saves, which is not over"):
        check_checkpoint_place(_job("gs://mine/run"), now=NOW)
    check_checkpoint_place(_job("gs://mine/run"), now=NOW + timedelta(hours=2))


def test_a_place_with_all_the_steps_of_the_job_is_refused_before_anything_is_bought(tmp_path: Path) -> None:
    _save(tmp_path, 19)
    check_checkpoint_place(_job(tmp_path), now=NOW)
    _save(tmp_path, 20)
    with pytest.raises(RequestError, match=r"newest checkpoint has step 20 of training\.steps 20: already trained"):
        check_checkpoint_place(_job(tmp_path), now=NOW)


@pytest.mark.parametrize("latest", [None, "", "foo", "step-7"])
def test_the_steps_of_a_place_are_known_without_a_usable_latest(tmp_path: Path, latest: str | None) -> None:
    _save(tmp_path, 19)
    # Another tool's folder, a checkpoint with a damaged description, and a file.
    (tmp_path / "step-1000").mkdir()
    _save(tmp_path, 30)
    (tmp_path / "step-30" / "sailor.json").write_text("{")
    (tmp_path / "step-31").touch()
    _write_latest(tmp_path, latest)
    check_checkpoint_place(_job(tmp_path), now=NOW)
    _save(tmp_path, 20)
    _write_latest(tmp_path, latest)
    with pytest.raises(RequestError, match=r"newest checkpoint has step 20 of training\.steps 20: already trained"):
        check_checkpoint_place(_job(tmp_path), now=NOW)


def _save(place: Path, step: int) -> None:
    (place / f"step-{step}").mkdir()
    sums = [FileSum(name=".metadata", size=0, sha256="")]
    (place / f"step-{step}" / "sailor.json").write_text(encode({"step": step}, sums))
    _write_latest(place, f"step-{step}")


def _write_latest(place: Path, name: str | None) -> None:
    (place / "latest").unlink(missing_ok=True)
    if name is not None:
        (place / "latest").write_text(name)
