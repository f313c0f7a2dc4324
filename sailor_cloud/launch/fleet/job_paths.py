"""Makes the paths of a job absolute before a run begins: nodes and `resume` have other working directories."""

from __future__ import annotations

from pathlib import Path

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.launch.fleet.local_data import data_fault
from sailor_cloud.model.job import HUB, Job
from sailor_cloud.provision.providers import is_cloud, on_this_machine
from sailor_cloud.workload import decoder
from sailor_cloud.workload.models import hub

_BY_NAME = ("synthetic", "python-stdlib")


def settled(job: Job, base: Path) -> Job:
    """Return the job with absolute paths of data, tokenizer, weights, checkpoints and TensorBoard.

    Relative paths start from `base`. Raises RequestError if files for local nodes are missing or unusable, or if they
    or checkpoints have no absolute path for nodes on a cloud.
    """
    here = all(on_this_machine(resource.provider) for resource in job.resources)
    named = {"data.source": job.data.source, "data.tokenizer": job.data.tokenizer}
    named["model.weights"] = None if job.model is None else job.model.weights
    paths = {field: place for field, place in named.items() if place is not None and _is_path(place)}
    hubs = {field: place for field, place in named.items() if here and (place or "").startswith(HUB)}
    problems = []
    for field, place in paths.items():
        if not here and not place.startswith("/"):
            hint = "gs://… or s3://…, or the absolute path that it has on every node"
            problems.append(Problem(path=field, message=f"is {place!r}, a path that nodes on a cloud lack", hint=hint))
        elif here and not _absolute(place, base).exists():
            problems.append(Problem(path=field, message=f"is {place!r}, but there is no {_absolute(place, base)}"))
        elif here and (fault := _fault(field, _absolute(place, base), job, base)):
            problems.append(Problem(path=field, message=f"is {place!r}, but {_absolute(place, base)} {fault}"))
    kept = job.checkpoint.to
    on_clouds = any(is_cloud(resource.provider) for resource in job.resources)
    if on_clouds and kept is not None and "://" not in kept and not kept.startswith("/"):
        hint = "gs://… or s3://…, or the absolute path of a folder that all nodes share"
        problems.append(
            Problem(path="checkpoint.to", message=f"is {kept!r}, which would be lost with the nodes", hint=hint)
        )
    if problems:
        raise RequestError(problems)
    weights = paths.pop("model.weights", None)
    if job.model is not None and weights is not None:
        model = job.model.model_copy(update={"weights": str(_absolute(weights, base))})
        job = job.model_copy(update={"model": model})
    found = {field.removeprefix("data."): str(_absolute(place, base)) for field, place in paths.items()}
    # Nodes on this machine read the user's cache; nodes on a cloud fetch their own copy.
    found |= {field.removeprefix("data."): str(hub.local_copy(str(place))) for field, place in hubs.items()}
    to = str(_absolute(kept, base)) if kept is not None and "://" not in kept else kept
    curves = job.metrics.tensorboard
    metrics = job.metrics.model_copy(update={"tensorboard": curves and str(_absolute(curves, base))})
    return job.model_copy(
        update={
            "metrics": metrics,
            "data": job.data.model_copy(update=found),
            "checkpoint": job.checkpoint.model_copy(update={"to": to}),
        }
    )


def _fault(field: str, path: Path, job: Job, base: Path) -> str:
    """Return why nodes can't use an existing file or folder; empty if nothing is known."""
    if field == "data.tokenizer":
        return "" if path.is_file() else "is no tokenizer file"
    if field != "data.source":
        return ""
    vocabulary = None if job.model is None or job.run is not None else decoder(job.model, base=base).vocab_size
    return data_fault(path, job.data.format, job.training.sequence_length, vocabulary)


def _is_path(place: str) -> bool:
    return place not in _BY_NAME and "://" not in place


def _absolute(place: str, base: Path) -> Path:
    return base.absolute() / Path(place).expanduser()
