"""Finds resources of runs on Google Cloud besides Compute Engine: buckets, service accounts, the watchdog.

Uses the JSON interfaces of Cloud Storage and IAM, with the credentials of google-cloud-compute. Labels name a bucket's
run, the description an account's; the name must also begin with the run's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast
from urllib.parse import quote

from sailor_cloud.catalog.providers.gcp.account import HOW
from sailor_cloud.errors import CredentialsError, MissingPackageError, ProvisionError
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    HOLDS_OBJECTS,
    OWNER_LABEL,
    RUN_LABEL,
    WHOLE_ACCOUNT,
    Listing,
    LiveResource,
    labels_in,
)
from sailor_cloud.provision.providers.gcp.sweep import BUSY, GCP, refusal
from sailor_cloud.run.folder import FIRST_OF_NAMES, resource_prefix

BUCKET, ACCOUNT, FUNCTION = "google_storage_bucket", "google_service_account", "google_cloudfunctions2_function"
# In order of deletion.
GCP_DATA_KINDS = (FUNCTION, ACCOUNT, BUCKET)
STORAGE = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", "https://storage.googleapis.com")
IAM = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM", "https://iam.googleapis.com")
_FUNCTIONS = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDFUNCTIONS", "https://cloudfunctions.googleapis.com")
SCHEDULER = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDSCHEDULER", "https://cloudscheduler.googleapis.com")
_WATCHDOG = "-watchdog"
_TIMEOUT_S = 60.0

Json = dict[str, Any]


class Session(Protocol):
    """The part of `requests.Session` that is used."""

    def request(self, method: str, url: str, **options: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleApi:
    """One interface: its address and an authorized session."""

    url: str
    session: Session

    def request(self, method: str, path: str, **parameters: str) -> Json:
        return self._request(method, path, params=parameters)

    def post(self, path: str, content: Json) -> Json:
        return self._request("POST", path, json=content)

    def put(self, path: str, content: Json) -> Json:
        return self._request("PUT", path, json=content)

    def _request(self, method: str, path: str, **options: Any) -> Json:
        answer = self.session.request(method, f"{self.url}{path}", timeout=_TIMEOUT_S, **options)
        answer.raise_for_status()
        # Only a deletion may return an empty body: a list without items still has one.
        body: Json = answer.json() if answer.content or method != "DELETE" else {}
        return body

    def pages(self, path: str, key: str, **parameters: str) -> Iterator[Json]:
        token = ""
        while True:
            response = self.request("GET", path, **parameters, **({"pageToken": token} if token else {}))
            yield from response.get(key, ())
            before, token = token, response.get("nextPageToken", "")
            if not token:
                return
            if token == before:
                raise ValueError(f"the list {path} does not end")


def sweep_gcp_data(project: str, *, run_id: str | None = None, kinds: Iterable[str] = GCP_DATA_KINDS) -> Listing:
    """Return the buckets, service accounts and functions of one run, or of all runs, in a project.

    Raises CredentialsError, also without google-auth. Kinds that the caller may not list become problems.
    """
    prefix = resource_prefix(run_id) if run_id else FIRST_OF_NAMES
    found: list[LiveResource] = []
    failed: list[tuple[str, str]] = []
    looks = {BUCKET: _buckets, ACCOUNT: _accounts, FUNCTION: _functions}
    for kind in sorted(set(kinds) & looks.keys()):
        try:
            found += looks[kind](project, prefix)
        except ProvisionError:
            raise
        except Exception as error:
            if status_of(error) == 401:
                raise refusal(f"list {kind} of {project}", error) from error
            failed.append((kind, f"{kind} in {project} can't be listed: {error}"))
    return Listing(found=tuple(r for r in found if run_id in (None, r.run_id)), failed=tuple(failed))


def remove_gcp_data(project: str, resources: Sequence[LiveResource]) -> tuple[str, ...]:
    """Delete found resources, buckets with their content; return the failures."""
    problems = []
    delete = {BUCKET: _delete_bucket, ACCOUNT: _delete_account, FUNCTION: _delete_function}
    for kind in GCP_DATA_KINDS:
        for found in (r for r in resources if (r.type, r.project) == (kind, project) and r.run_id):
            try:
                delete[kind](found)
            except Exception as error:
                if status_of(error) != 404:
                    problems.append(f"{kind} {found.name} can't be deleted: {error}")
    return tuple(problems)


def _buckets(project: str, prefix: str) -> Iterator[LiveResource]:
    storage = google_api(*STORAGE)
    for item in storage.pages("/storage/v1/b", "items", project=project, prefix=prefix):
        if RUN_LABEL in item.get("labels", {}):
            # The code of a watchdog is never wanted.
            of_results = not item["name"].endswith(_WATCHDOG)
            held = of_results and storage.request("GET", f"/storage/v1/b/{quote(item['name'])}/o", maxResults="1").get(
                "items"
            )
            region, detail = item.get("location", "").lower(), HOLDS_OBJECTS if held else ""
            yield _live(BUCKET, project, item["name"], item["labels"], region=region, detail=detail)


def _accounts(project: str, prefix: str) -> Iterator[LiveResource]:
    for item in google_api(*IAM).pages(f"/v1/projects/{quote(project)}/serviceAccounts", "accounts", pageSize="100"):
        labels = labels_in(item.get("description", ""))
        if RUN_LABEL in labels and item["email"].startswith(prefix):
            yield _live(ACCOUNT, project, item["email"], labels, region=WHOLE_ACCOUNT)


def _functions(project: str, prefix: str) -> Iterator[LiveResource]:
    try:
        every = list(google_api(*_FUNCTIONS).pages(f"/v2/projects/{quote(project)}/locations/-/functions", "functions"))
    except Exception as error:
        if _is_switched_off(error):
            return
        raise
    for item in every:
        _, _, _, region, _, name = item["name"].split("/")
        if RUN_LABEL in item.get("labels", {}) and name.startswith(prefix):
            yield _live(FUNCTION, project, name, item["labels"], region=region)


def _is_switched_off(error: Exception) -> bool:
    """Whether an interface is disabled in a project, so that nothing can have been created through it."""
    return status_of(error) == 403 and "SERVICE_DISABLED" in str(getattr(getattr(error, "response", None), "text", ""))


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


def _delete_bucket(found: LiveResource) -> None:
    storage = google_api(*STORAGE)
    place = f"/storage/v1/b/{quote(found.name)}"
    for item in storage.pages(f"{place}/o", "items", versions="true"):
        storage.request("DELETE", f"{place}/o/{quote(item['name'], safe='')}", generation=str(item["generation"]))
    storage.request("DELETE", place)


def _delete_account(found: LiveResource) -> None:
    """Delete an account, and the role that was made only for it."""
    iam, name, project = google_api(*IAM), found.name.partition("@")[0], quote(found.project)
    if name.endswith(_WATCHDOG):
        _delete_if_there(iam, f"/v1/projects/{project}/roles/{name.replace('-', '_')}")
    iam.request("DELETE", f"/v1/projects/{project}/serviceAccounts/{quote(found.name)}")


def _delete_function(found: LiveResource) -> None:
    """Delete a function, and the job that calls it."""
    place = f"projects/{quote(found.project)}/locations/{quote(found.region)}"
    _delete_if_there(google_api(*SCHEDULER), f"/v1/{place}/jobs/{quote(found.name)}")
    google_api(*_FUNCTIONS).request("DELETE", f"/v2/{place}/functions/{quote(found.name)}")


def _delete_if_there(api: GoogleApi, path: str) -> None:
    try:
        api.request("DELETE", path)
    except Exception as error:
        if status_of(error) != 404:
            raise


def google_api(variable: str, usual: str) -> GoogleApi:
    """Return an interface: the one that an environment variable names, or the default."""
    url = os.environ.get(variable, "").rstrip("/") or usual
    return GoogleApi(url=url, session=_session(plain=url.startswith("http://")))


def _session(*, plain: bool) -> Session:
    try:
        import google.auth
        import requests
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter
        from urllib3 import Retry
    except ImportError as error:
        raise MissingPackageError("google.cloud.compute_v1", "gcp") from error
    # Don't retry an unreachable service, nor wait as long as an answer requests.
    again = Retry(
        connect=0,
        read=0,
        other=0,
        status=4,
        backoff_factor=1.0,
        status_forcelist=BUSY,
        allowed_methods=None,
        raise_on_status=False,
        respect_retry_after_header=False,
    )
    made: Any
    if plain:
        # A token must never be sent unencrypted.
        made = requests.Session()
        made.mount("http://", HTTPAdapter(max_retries=again))
        return cast(Session, made)
    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    except GoogleAuthError as error:
        why = str(error).partition(". ")[0]
        raise CredentialsError(f"no Google Cloud credentials: {why}; {HOW}") from error
    authorized: Any = AuthorizedSession
    made = authorized(credentials)
    made.mount("https://", HTTPAdapter(max_retries=again))
    return cast(Session, made)


def api_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of requests to an interface; errors of requests are OSErrors."""
    try:
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        return (ProvisionError, OSError)
    return (ProvisionError, OSError, GoogleAuthError)


def status_of(error: Exception) -> int | None:
    """Return the HTTP status of an interface's answer, if there is one."""
    return getattr(getattr(error, "response", None), "status_code", None)
