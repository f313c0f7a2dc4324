"""Deletes everything of one run from within its project once the run is overdue, itself last.

Cloud Scheduler calls `watchdog` every 15 minutes. It is its own file because it runs as a Cloud Function, with the
standard library alone and the token that the metadata server hands out.
"""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

PAUSE_S = 10
# Cloud Scheduler waits for an answer for 30 minutes.
LIMIT_S = 1500
# By what it is listed with, in the order of deletion: what costs money first, what others stand in last.
KINDS = ("instances", "disks", "resourcePolicies", "routers", "firewalls", "subnetworks", "networks")
GLOBAL = ("firewalls", "networks")

Json = dict[str, Any]


def watchdog(request: Any) -> tuple[str, int]:
    """Delete what is left; answer 500, which Cloud Scheduler logs as a failure, as long as something still exists."""
    due_at = datetime.fromisoformat(os.environ["DUE_AT"])
    if datetime.now(UTC) < due_at:
        return f"nothing is deleted before {due_at:%Y-%m-%d %H:%M:%S} UTC\n", 200
    run, until = os.environ["RUN"], time.monotonic() + LIMIT_S
    google = Google()
    while left := list(_delete_once(google, run)):
        if time.monotonic() >= until:
            told = f"{len(left)} resources of {run} are left: {'; '.join(left)}\n"
            logging.error(told)
            return told, 500
        time.sleep(PAUSE_S)
    kept = _delete_beside(google, run)
    _delete_itself(google)
    return f"everything of {run} is deleted{kept}\n", 200


class Google:
    """The REST interfaces, asked with the rights of the function's own account."""

    def __init__(self) -> None:
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
        asked = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            self._token = json.load(answer)["access_token"]

    def ask(self, method: str, service: str, path: str, **parameters: str) -> Json:
        """Return what an interface answers. Raises HTTPError."""
        base = os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", f"https://{service}.googleapis.com")
        url = f"{base}{path}{'?' + urlencode(parameters) if parameters else ''}"
        asked = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            told: Json = json.loads(answer.read() or b"{}")
        return told

    def delete(self, service: str, path: str, **parameters: str) -> None:
        """Delete something that may not be there. Raises HTTPError."""
        try:
            self.ask("DELETE", service, path, **parameters)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

    def is_own(self, service: str, path: str, run: str) -> bool:
        """Tell whether something exists and carries the run's label. Raises HTTPError."""
        try:
            return _carries(self.ask("GET", service, path), run)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False

    def pages(self, service: str, path: str) -> Iterator[Json]:
        token = ""
        while True:
            told = self.ask("GET", service, path, **({"pageToken": token} if token else {}))
            yield told
            token = told.get("nextPageToken", "")
            if not token:
                return


def _delete_once(google: Google, run: str) -> Iterator[str]:
    """Ask for the deletion of everything of the run; yield what was there, with what stood in the way."""
    project = f"/compute/v1/projects/{os.environ['PROJECT']}"
    for kind in KINDS:
        try:
            found = list(_listed(google, project, kind))
        except OSError as error:
            yield f"{kind} can't be listed: {error}"
            continue
        for place, item in found:
            if "unreachable" in item:
                yield f"{kind} in {place} can't be listed: {item['unreachable']}"
                continue
            if not _carries(item, run):
                continue
            told = f"{kind} {item['name']} in {place}"
            try:
                google.delete("compute", f"{project}/{place}/{kind}/{item['name']}")
                yield told
            except OSError as error:
                yield f"{told}: {error}"


def _listed(google: Google, project: str, kind: str) -> Iterator[tuple[str, Json]]:
    """Yield place and item; where a place can't be asked, what it said instead of an item."""
    if kind in GLOBAL:
        for page in google.pages("compute", f"{project}/global/{kind}"):
            yield from (("global", item) for item in page.get("items", ()))
        return
    for page in google.pages("compute", f"{project}/aggregated/{kind}"):
        for place, held in page.get("items", {}).items():
            if held.get("warning", {}).get("code") == "UNREACHABLE":
                yield place, {"unreachable": held["warning"].get("message", "")}
            yield from ((place, item) for item in held.get(kind, ()))


def _carries(item: Json, run: str) -> bool:
    """Tell whether something is the run's: what has no labels carries them in its description."""
    labels = [f"{key}={value}" for key, value in item.get("labels", {}).items()]
    return f"sailor-cloud-run={run}" in (*labels, *item.get("description", "").split())


def _delete_beside(google: Google, run: str) -> str:
    """Delete the account that nodes acted as, and the run's own bucket if it is empty; return what is kept.

    These are looked up by name; what has such a name and not the run's label is somebody else's.
    """
    node = _account(f"{os.environ['NAME']}-node")
    if google.is_own("iam", node, run):
        google.delete("iam", node)
    bucket = os.environ["BUCKET"]
    if bucket and google.is_own("storage", f"/storage/v1/b/{bucket}", run):
        try:
            google.delete("storage", f"/storage/v1/b/{bucket}")
        except urllib.error.HTTPError as error:
            # Cloud Storage refuses to delete what holds anything.
            if error.code != 409:
                raise
            return f"; gs://{bucket} is kept, it holds results that nobody has fetched"
    return ""


def _delete_itself(google: Google) -> None:
    name, project = f"{os.environ['NAME']}-watchdog", os.environ["PROJECT"]
    place = f"projects/{project}/locations/{os.environ['REGION']}"
    bucket = f"/storage/v1/b/{name}"
    try:
        for page in google.pages("storage", f"{bucket}/o"):
            for item in page.get("items", ()):
                google.delete("storage", f"{bucket}/o/{quote(item['name'], safe='')}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
    google.delete("storage", bucket)
    google.delete("cloudscheduler", f"/v1/{place}/jobs/{name}")
    google.delete("cloudfunctions", f"/v2/{place}/functions/{name}")
    google.delete("iam", f"/v1/projects/{project}/roles/{name.replace('-', '_')}")
    google.delete("iam", _account(name))


def _account(name: str) -> str:
    project = os.environ["PROJECT"]
    return f"/v1/projects/{project}/serviceAccounts/{name}@{project}.iam.gserviceaccount.com"
