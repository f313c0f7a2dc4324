from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from factories.priced_documents import gcp_document
from factories.running_agent import wait_until
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.telemetry import trackers
from sailor_cloud.launch.telemetry.notify import secret
from sailor_cloud.launch.telemetry.trackers import Feed, Mlflow, TensorBoard, Trackers, Wandb, trackers_of
from sailor_cloud.model.job import Metrics, MlflowExperiment, WandbProject
from sailor_cloud.model.job_file import job_of_values

INSTALL = "pip install 'sailor-cloud[trackers]'"


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"SKIPPED: {package} is not installed: {INSTALL}")


def step(number: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "ts": 1.0,
        "loss": 5.0 - number,
        "iteration_s": 0.5,
        "skipped": "x",
        **more,
    }


class Broken:
    """A tracker that refuses every step until it is mended."""

    def __init__(self) -> None:
        self.broken = True
        self.taken: list[int] = []
        self.tried = threading.Event()

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.tried.set()
        if self.broken:
            raise OSError("https://user:s3cret@example.org refused")
        self.taken.append(step)

    def close(self) -> None: ...


def test_tensorboard_reads_the_curves_that_were_written(tmp_path: Path) -> None:
    needs("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    board = TensorBoard(str(tmp_path), "run-1")
    feed = Feed("TensorBoard", lambda: board, print)
    for number in (1, 2):
        Trackers((feed,)).event(step(number))
    feed.close()

    (file,) = (tmp_path / "run-1").iterdir()
    rows = [(e.step, v.tag, v.tensor.float_val[0]) for e in EventFileLoader(str(file)).Load() for v in e.summary.value]
    assert rows == [(1, "loss", 4.0), (1, "iteration_s", 0.5), (2, "loss", 3.0), (2, "iteration_s", 0.5)]


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    project = Wandb(WandbProject(project="tests"), "run-1", str(tmp_path), {"job": "tiny"})
    project.log(1, 1.0, {"loss": 4.0})
    project.close()
    (run,) = (tmp_path / "wandb").glob("offline-run-*-run-1")
    # Its own service may write the last records after the run has been finished.
    (record,) = run.glob("run-*.wandb")
    wait_until(lambda: b"loss" in record.read_bytes(), "the record of the loss")
    assert b"tiny" in record.read_bytes(), "the job's name is part of the run's configuration"


def test_mlflow_keeps_a_run_in_a_folder_and_continues_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    experiment = MlflowExperiment(experiment="tests", uri=tmp_path.as_uri())
    for number in (1, 2):
        run = Mlflow(experiment, "run-1", {"job": "tiny"})
        run.log(number, 1.0, {"loss": 5.0 - number})
        run.close()
    client = MlflowClient(tracking_uri=experiment.uri)
    (found,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert found.data.params == {"job": "tiny"}
    assert [(row.step, row.value) for row in client.get_metric_history(found.info.run_id, "loss")] == [(1, 4), (2, 3)]


def test_a_tracker_that_is_down_is_reported_once_without_its_address_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trackers, "RETRY_S", 0.0)
    caplog.set_level("DEBUG")
    notes: list[str] = []
    broken = Broken()
    feed = Feed("MLflow", lambda: broken, notes.append)
    for number in (1, 2):
        feed.put(number, 1.0, {})
    assert broken.tried.wait(10)
    while feed._steps.qsize():
        broken.tried.wait(0.01)
    broken.broken = False
    feed.put(3, 1.0, {})
    feed.close()
    assert broken.taken[-1] == 3
    assert notes == ["MLflow takes no metrics (OSError); training continues"]
    assert "s3cret" not in caplog.text


def test_nobody_waits_for_a_tracker_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "CLOSE_S", 0.01)
    monkeypatch.setattr(trackers, "MOST_WAITING", 2)
    notes: list[str] = []
    held = threading.Event()
    feed = Feed("MLflow", lambda: held.wait() and Broken(), notes.append)  # type: ignore[arg-type,return-value]
    for number in range(2):
        feed.put(number, 1.0, {})
    feed.close()
    held.set()
    assert not notes or "did not take the last steps" in notes[0]


def test_a_package_that_is_missing_is_named_with_its_install_line() -> None:
    notes: list[str] = []

    def connect() -> Any:
        raise ModuleNotFoundError("No module named 'wandb'")

    feed = Feed("Weights & Biases", connect, notes.append)
    feed.put(1, 1.0, {})
    feed.close()
    assert notes == [f"Weights & Biases takes no metrics (not installed: {INSTALL}); training continues"]


def test_a_job_names_its_trackers_and_documents_without_any_are_as_before() -> None:
    document = gcp_document()
    assert "metrics" not in json.loads(document.to_json())["job"]
    job = document.job.model_copy(update={"metrics": Metrics(tensorboard="/curves", wandb=WandbProject(project="p"))})
    assert json.loads(job.model_dump_json())["metrics"]["wandb"] == {"project": "p", "entity": None}
    assert trackers_of(document, run="r", folder="/logs", say=print)._feeds == ()


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"mlflow": {"experiment": "e", "uri": "https://me:pass@example.org"}}, "must hold no password"),
        ({"wandb": {"project": "p", "api_key": "k"}}, "is not a field here"),
        ({"tensorboard": "gs://bucket/curves"}, "must be a folder of this machine"),
    ],
)
def test_a_job_holds_no_secret_of_a_tracker(metrics: dict[str, Any], why: str) -> None:
    values = {**json.loads(gcp_document().job.model_dump_json()), "metrics": metrics}
    with pytest.raises(RequestError, match=why) as refused:
        job_of_values(values)
    assert "me:pass" not in str(refused.value)


def test_a_secret_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    assert secret("KEY", {"KEY_FILE": str(tmp_path / "key")}) == "s3cret"
    assert secret("KEY", {"KEY": "own", "KEY_FILE": str(tmp_path / "key")}) == "own"
    assert secret("KEY", {"KEY_FILE": str(tmp_path / "absent")}) is None
