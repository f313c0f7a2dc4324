"""Sends a run's curves to TensorBoard, Weights & Biases and MLflow. A broken tracker never stops training."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sailor_cloud.launch.telemetry.events import AgentEvent
from sailor_cloud.launch.telemetry.notify import secret
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import MlflowExperiment, WandbProject

logger = logging.getLogger(__name__)

# Fields of a step's event that are curves; names as in the Prometheus metrics.
CURVES = (
    "loss",
    "grad_norm",
    "learning_rate",
    "tokens",
    "tokens_per_s",
    "iteration_s",
    "predicted_iteration_s",
    "compute_s",
    "transfer_s",
    "bubble_s",
    "sync_s",
    "most_memory_bytes",
)
MOST_WAITING = 10_000
RETRY_S = 30.0
CLOSE_S = 10.0
_INSTALL = "pip install 'sailor-cloud[{extra}]'"


class Tracker(Protocol):
    """A service that keeps curves. Every method may raise or take long."""

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in a folder, one subfolder per run."""

    def __init__(self, folder: str, run: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._writer = EventFileWriter(os.path.join(folder, run))

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        rows = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=at, step=step, summary=self._summary(value=rows)))

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run of a Weights & Biases project; a resumed run continues under the same id."""

    def __init__(self, project: WandbProject, run: str, folder: str, config: dict[str, Any]) -> None:
        import wandb

        settings = wandb.Settings(
            api_key=secret("WANDB_API_KEY"),
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
        )
        self._run = wandb.init(
            project=project.project,
            entity=project.entity,
            id=run,
            name=run,
            resume="allow",
            dir=folder,
            config=config,
            settings=settings,
        )

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of an MLflow experiment; a resumed run is found by the tag `sailor-cloud.run`."""

    def __init__(self, experiment: MlflowExperiment, run: str, config: dict[str, Any]) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        for name in ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            found = secret(name)
            if found is not None:
                os.environ[name] = found
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=experiment.uri)
        known = self._client.get_experiment_by_name(experiment.experiment)
        place = known.experiment_id if known else self._client.create_experiment(experiment.experiment)
        found_runs = self._client.search_runs([place], f"tags.\"sailor-cloud.run\" = '{run}'", max_results=1)
        if found_runs:
            self._run = found_runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(place, run_name=run, tags={"sailor-cloud.run": run}).info.run_id
        for name, value in config.items():
            self._client.log_param(self._run, name, value)

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        rows = [self._metric(name, value, int(at * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=rows)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class Feed:
    """Passes steps to one tracker on its own thread, so that training never waits for the tracker."""

    def __init__(self, name: str, connect: Callable[[], Tracker], say: Callable[[str], None]) -> None:
        self._name, self._connect, self._say = name, connect, say
        self._steps: queue.Queue[tuple[int, float, dict[str, float]] | None] = queue.Queue(MOST_WAITING)
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def put(self, step: int, at: float, values: dict[str, float]) -> None:
        try:
            self._steps.put_nowait((step, at, values))
        except queue.Full:
            logger.debug("%s is too slow; step %d is left out", self._name, step)

    def close(self) -> None:
        """Wait briefly for steps that are still to be passed on."""
        try:
            self._steps.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._say(f"{self._name} did not take the last steps within {CLOSE_S:.0f} s; they are in the run's folder")

    def _work(self) -> None:
        tracker: Tracker | None = None
        again_at = 0.0
        while True:
            item = self._steps.get()
            if item is not None and time.monotonic() < again_at:
                continue
            try:
                if item is None:
                    if tracker is not None:
                        tracker.close()
                    return
                tracker = tracker or self._connect()
                tracker.log(*item)
                self._failed = False
            except Exception as error:
                # All errors of foreign packages end here; their text may contain an address with a password.
                logger.info("%s: %s", self._name, type(error).__name__)
                again_at = time.monotonic() + RETRY_S
                if not self._failed:
                    self._failed = True
                    self._say(f"{self._name} takes no metrics ({_why(error)}); training continues")
                if item is None:
                    return


def _why(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"not installed: {_INSTALL.format(extra='trackers')}"
    return type(error).__name__


class Trackers:
    """All trackers that a job names."""

    def __init__(self, feeds: tuple[Feed, ...] = ()) -> None:
        self._feeds = feeds

    def event(self, event: AgentEvent) -> None:
        """Pass on a step; never fails and never waits."""
        if event["event"] != "step" or not self._feeds:
            return
        values = {name: float(event[name]) for name in CURVES if isinstance(event.get(name), int | float)}
        for feed in self._feeds:
            feed.put(int(event["step"]), float(event.get("ts", time.time())), values)

    def close(self) -> None:
        for feed in self._feeds:
            feed.close()


def trackers_of(document: PlanDocument, *, run: str, folder: str, say: Callable[[str], None]) -> Trackers:
    """Return the trackers of a plan's job; `folder` is for their own files."""
    metrics, training = document.job.metrics, document.job.training
    config = {"job": document.job.name, "devices": ", ".join(f"{n} {name}" for name, n in document.devices.items())}
    config.update(training.model_dump(mode="json", exclude_none=True))
    connections: list[tuple[str, Callable[[], Tracker]]] = []
    if (events := metrics.tensorboard) is not None:
        connections.append(("TensorBoard", lambda: TensorBoard(events, run)))
    if (project := metrics.wandb) is not None:
        connections.append(("Weights & Biases", lambda: Wandb(project, run, folder, config)))
    if (experiment := metrics.mlflow) is not None:
        connections.append(("MLflow", lambda: Mlflow(experiment, run, config)))
    return Trackers(tuple(Feed(name, connect, say) for name, connect in connections))
