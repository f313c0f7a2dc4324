"""Configs and data on the Hugging Face Hub: hf://ORG/NAME and hf://datasets/ORG/NAME, at a pinned revision."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sailor_cloud.errors import DataError, Problem, RequestError
from sailor_cloud.model.job import HUB, Job

logger = logging.getLogger(__name__)

_FORM = re.compile(
    r"hf://(?P<data>datasets/)?(?P<repo>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w.-]+))?(/(?P<path>[^\s@]+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_INSTALL = "pip install 'sailor-cloud[hub]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPlace:
    """A file or folder of a repository; `path` is "" for all of it."""

    repo: str
    data: bool
    revision: str
    path: str

    def __str__(self) -> str:
        path = f"/{self.path}" if self.path else ""
        return f"{HUB}{'datasets/' if self.data else ''}{self.repo}@{self.revision}{path}"

    @property
    def repo_type(self) -> str:
        return "dataset" if self.data else "model"


def place_of(text: str) -> HubPlace:
    """Return the file or folder of an hf:// address. Raises RequestError for other text."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise RequestError(f"{text!r} is no address of the Hub; write hf://ORG/NAME or hf://datasets/ORG/NAME@REVISION")
    return HubPlace(
        repo=found["repo"], data=bool(found["data"]), revision=found["revision"] or "main", path=found["path"] or ""
    )


def pinned(job: Job) -> Job:
    """Return the job with the commit of every hf:// address instead of its branch, so that later pushes change nothing.

    Without a network, the commit in the local cache is used and logged. Raises RequestError if there is neither.
    """
    changes: dict[str, Any] = {}
    if job.model is not None and (job.model.config or "").startswith(HUB):
        changes["model"] = job.model.model_copy(update={"config": _pinned("model.config", job.model.config or "")})
    named = {"source": job.data.source, "tokenizer": job.data.tokenizer or ""}
    found = {name: _pinned(f"data.{name}", place) for name, place in named.items() if place.startswith(HUB)}
    if found:
        changes["data"] = job.data.model_copy(update=found)
    return job.model_copy(update=changes) if changes else job


def pinned_as(job: Job, pinned_job: Job) -> Job:
    """Return the job with the commits of another job's addresses, if both name the same file or folder.

    Only commits are taken over, since somebody else may decide what a branch holds.
    """
    changes: dict[str, Any] = {}
    if job.model is not None and pinned_job.model is not None:
        config = _same_place(job.model.config, pinned_job.model.config)
        changes["model"] = job.model.model_copy(update={"config": config})
    source = _same_place(job.data.source, pinned_job.data.source)
    tokenizer = _same_place(job.data.tokenizer, pinned_job.data.tokenizer)
    changes["data"] = job.data.model_copy(update={"source": source, "tokenizer": tokenizer})
    return job.model_copy(update=changes)


def _same_place(given: str | None, known: str | None) -> str | None:
    if not (given or "").startswith(HUB) or not (known or "").startswith(HUB):
        return given
    mine, other = place_of(given or ""), place_of(known or "")
    moved = _COMMIT.fullmatch(mine.revision) or replace(mine, revision=other.revision) != other
    return given if moved or not _COMMIT.fullmatch(other.revision) else known


def local_copy(text: str, *, default: str = "") -> Path:
    """Return the local copy of an hf:// file or folder, fetched if the cache lacks it. Raises DataError."""
    place, hub = place_of(text), _hub()
    path = place.path or default
    try:
        if path and (default or Path(path).suffix):
            return Path(hub.hf_hub_download(place.repo, path, repo_type=place.repo_type, revision=place.revision))
        pattern = f"{path}/*" if path else None
        root = hub.snapshot_download(
            place.repo, repo_type=place.repo_type, revision=place.revision, allow_patterns=pattern
        )
        return Path(root) / path
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        raise DataError(f"can't fetch {place}: {_reason(error)}") from error


def _pinned(field: str, text: str) -> str:
    place, hub = place_of(text), _hub()
    if _COMMIT.fullmatch(place.revision):
        return str(place)
    try:
        info = hub.HfApi().repo_info(place.repo, repo_type=place.repo_type, revision=place.revision, timeout=20.0)
        _remember(place, info.sha)
        return str(replace(place, revision=info.sha))
    # If nothing answers, its client raises errors that are not OSError.
    except (OSError, ValueError, hub.errors.HTTPError) as error:
        refusal = getattr(getattr(error, "response", None), "status_code", None)
        if refusal in (401, 403, 404):
            hint = "check the name and revision; a private one needs HF_TOKEN in the environment"
            raise RequestError([Problem(path=field, message=f"is {text!r}: {_reason(error)}", hint=hint)]) from error
        try:
            kept = hub.snapshot_download(
                place.repo, repo_type=place.repo_type, revision=place.revision, local_files_only=True
            )
        except (OSError, ValueError, hub.errors.HTTPError):
            hint = "connect once, or name a local file"
            message = f"is {text!r}: the Hub does not answer ({_reason(error)}) and the local cache lacks it"
            raise RequestError([Problem(path=field, message=message, hint=hint)]) from error
        found = replace(place, revision=Path(kept).name)
        logger.warning("the Hub does not answer; using the local cache of %s", found)
        return str(found)


def _remember(place: HubPlace, commit: str) -> None:
    """Note in the Hub's cache the commit of a branch, as the Hub's client does for downloads by branch."""
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    noted = Path(HF_HUB_CACHE, repo_folder_name(repo_id=place.repo, repo_type=place.repo_type), "refs", place.revision)
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(commit)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise RequestError(f"hf:// needs the package huggingface_hub: {_INSTALL}") from error
    return huggingface_hub


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
