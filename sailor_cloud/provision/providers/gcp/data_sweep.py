"""Looks for what runs have on Google Cloud beside Compute Engine: buckets and service accounts.

Through the JSON interfaces of Cloud Storage and IAM, with the credentials that google-cloud-compute uses. Labels name a
bucket's run, the description that of an account; the name must begin with the run's own besides.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import quote

from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    HOLDS_OBJECTS,
    OWNER_LABEL,
    RUN_LABEL,
    WHOLE_ACCOUNT,
    CloudSweep,
    LiveResource,
    labels_in,
)
from sailor_cloud.provision.providers.gcp.sweep import GCP
from sailor_cloud.run.folder import FIRST_OF_NAMES, resource_prefix

BUCKET, ACCOUNT = "google_storage_bucket", "google_service_account"
# In the order in which they are deleted.
GCP_DATA_KINDS = (ACCOUNT, BUCKET)
STORAGE = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "https://storage.googleapis.com")
_IAM = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "https://iam.googleapis.com")
_TIMEOUT_S = 60.0

Json = dict[str, Any]


class Session(Protocol):
    """What is needed of `requests.Session`."""

    def request(self, method: str, url: str, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleApi:
    """One interface: its address and a session that may use it."""

    url: str
    session: Session

    def ask(self, method: str, path: str, **parameters: str) -> Json:
        return self._told(method, path, params=parameters)

    def put(self, path: str, content: Json) -> Json:
        return self._told("PUT", path, json=content)

    def _told(self, method: str, path: str, **options: Any) -> Json:
        answer = self.session.request(method, f"{self.url}{path}", timeout=_TIMEOUT_S, **options)
        answer.raise_for_status()
        told: Json = answer.json() if answer.content else {}
        return told

    def pages(self, path: str, key: str, **parameters: str) -> Iterator[Json]:
        token = ""
        while True:
            told = self.ask("GET", path, **parameters, **({"pageToken": token} if token else {}))
            yield from told.get(key, ())
            token = told.get("nextPageToken", "")
            if not token:
                return


def sweep_gcp_data(project: str, *, run_id: str | None = None, kinds: Iterable[str] = GCP_DATA_KINDS) -> CloudSweep:
    """Return the buckets and service accounts of one run, or of all runs, in a project.

    Raises CredentialsError, or ProvisionError without google-auth. What the caller may not list becomes a problem.
    """
    prefix = resource_prefix(run_id) if run_id else FIRST_OF_NAMES
    found: list[LiveResource] = []
    problems = []
    looks = {BUCKET: _buckets, ACCOUNT: _accounts}
    for kind in sorted(set(kinds) & looks.keys()):
        try:
            found += looks[kind](project, prefix)
        except ProvisionError:
            raise
        except Exception as error:
            if status_of(error) == 401:
                raise CredentialsError(f"Google Cloud refused to list {kind} of {project}: {error}") from error
            problems.append(f"{kind} in {project} can't be listed: {error}")
    return CloudSweep(found=tuple(r for r in found if run_id in (None, r.run_id)), problems=tuple(problems))


def remove_gcp_data(project: str, resources: Sequence[LiveResource]) -> tuple[str, ...]:
    """Delete resources that a sweep found, buckets with what is in them; return what failed."""
    problems = []
    for kind in GCP_DATA_KINDS:
        for found in (r for r in resources if (r.type, r.project) == (kind, project) and r.run_id):
            try:
                (_delete_bucket if kind == BUCKET else _delete_account)(project, found.name)
            except Exception as error:
                if status_of(error) != 404:
                    problems.append(f"{kind} {found.name} can't be deleted: {error}")
    return tuple(problems)


def _buckets(project: str, prefix: str) -> Iterator[LiveResource]:
    storage = google_api(*STORAGE)
    for item in storage.pages("/storage/v1/b", "items", project=project, prefix=prefix):
        if RUN_LABEL in item.get("labels", {}):
            held = storage.ask("GET", f"/storage/v1/b/{quote(item['name'])}/o", maxResults="1").get("items")
            region, detail = item.get("location", "").lower(), HOLDS_OBJECTS if held else ""
            yield _live(BUCKET, project, item["name"], item["labels"], region=region, detail=detail)


def _accounts(project: str, prefix: str) -> Iterator[LiveResource]:
    for item in google_api(*_IAM).pages(f"/v1/projects/{quote(project)}/serviceAccounts", "accounts", pageSize="100"):
        labels = labels_in(item.get("description", ""))
        if RUN_LABEL in labels and item["email"].startswith(prefix):
            yield _live(ACCOUNT, project, item["email"], labels, region=WHOLE_ACCOUNT)


def _live(
    kind: str, project: str, name: str, labels: Mapping[str, str], *, region: str, detail: str = ""
) -> LiveResource:
    return LiveResource(
        provider=GCP,
        region=region,
        type=kind,
        name=name,
        run_id=labels[RUN_LABEL],
        detail=detail,
        project=project,
        title=name,
        owner=labels.get(OWNER_LABEL, ""),
        expires=labels.get(EXPIRES_LABEL, ""),
    )


def _delete_bucket(project: str, name: str) -> None:
    storage = google_api(*STORAGE)
    place = f"/storage/v1/b/{quote(name)}"
    for item in storage.pages(f"{place}/o", "items", versions="true"):
        storage.ask("DELETE", f"{place}/o/{quote(item['name'], safe='')}", generation=str(item["generation"]))
    storage.ask("DELETE", place)


def _delete_account(project: str, email: str) -> None:
    google_api(*_IAM).ask("DELETE", f"/v1/projects/{quote(project)}/serviceAccounts/{quote(email)}")


def google_api(variable: str, usual: str) -> GoogleApi:
    """Return an interface: the one that a variable of the environment names, or the usual one."""
    url = os.environ.get(variable, "").rstrip("/") or usual
    return GoogleApi(url=url, session=_session(plain=url.startswith("http://")))


def _session(*, plain: bool) -> Session:
    try:
        import google.auth
        import requests
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        raise ProvisionError(
            "looking at Google Cloud needs google-auth and requests; install them with pip install 'sailor-cloud[gcp]'"
        ) from error
    made: Any
    if plain:
        # A token never travels in the clear.
        made = requests.Session()
        return cast(Session, made)
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except GoogleAuthError as error:
        raise CredentialsError(f"Google Cloud has no credentials to look for buckets with: {error}") from error
    made = AuthorizedSession
    return cast(Session, made(credentials))


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that an interface answered with, if it answered."""
    return getattr(getattr(error, "response", None), "status_code", None)
