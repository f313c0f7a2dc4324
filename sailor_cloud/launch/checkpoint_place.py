"""The place that a job names for its checkpoints: no other run may use it, and there must be steps left to train."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sailor_cloud.errors import Problem, RequestError, SailorError
from sailor_cloud.model.job import Job
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.state import OVER, fold
from sailor_runtime.manifest import DESCRIPTION, LATEST, newest_whole, step_of


def named_place(job: Job) -> str | None:
    """Return the URL or absolute path that a job names for its checkpoints."""
    chosen = job.checkpoint.to
    return chosen if chosen is None or "://" in chosen else str(Path(chosen).expanduser().absolute())


def check_checkpoint_place(job: Job, *, now: datetime) -> None:
    """Raise RequestError if another run of this machine saves in the job's place, or nothing is left to train.

    Nodes check the second point, too, because only they can read most places.
    """
    place = named_place(job)
    if place is None:
        return
    for folder in RunFolder.list(checked=False):
        if _uses(folder, place, now):
            hint = (
                f"wait for it, continue it with 'sailor-cloud resume {folder.run_id}', end it with 'sailor-cloud down "
                f"{folder.run_id}', or name another place"
            )
            raise RequestError([_problem(f"is {place}, where run {folder.run_id} saves, which is not over", hint)])
    step = None if job.run is not None else _newest_step(Path(place))
    if step is not None and job.training.steps is not None and step >= job.training.steps:
        raise RequestError(
            [
                _problem(
                    f"is {place}, and its newest checkpoint has step {step} of training.steps {job.training.steps}: "
                    "already trained; nothing to do",
                    "name another place to train again, with the same or other settings, or raise training.steps",
                )
            ]
        )


def _problem(message: str, hint: str) -> Problem:
    return Problem(path="checkpoint.to", message=message, hint=hint)


def _uses(folder: RunFolder, place: str, now: datetime) -> bool:
    try:
        folder.check()
        state = fold(read(folder.journal_file))
        if state.phase in OVER or (state.expires_at is not None and state.expires_at < now):
            return False
        other = named_place(folder.read_document().job)
        return other is not None and _spelled_alike(other) == _spelled_alike(place)
    except (SailorError, OSError, ValueError):
        # Whatever is wrong with that run, this one can't mend it.
        return False


def _spelled_alike(place: str) -> str:
    """Return the same text for each spelling of a place."""
    return place.rstrip("/") if "://" in place else str(Path(place).resolve())


def _newest_step(place: Path) -> int | None:
    """Return the step of the newest checkpoint in a folder, as training finds it; None if there is none."""
    try:
        names = [path.name for path in place.iterdir()]
        latest = (place / LATEST).read_text(errors="replace").strip() if LATEST in names else None
        name, _ = newest_whole(names, latest, lambda name: (place / name / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return None
    return int(step_of(name))
