"""The caller's credentials and rights in a Google Cloud project, and a run's bill."""

from __future__ import annotations

import os
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from sailor_cloud.catalog.providers.gcp.account import HOW
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Cloud, NetworkAccess
from sailor_cloud.provision.account import CredentialsExpiry, MissingPermissions, ProviderBill
from sailor_cloud.provision.live_resources import RUN_LABEL
from sailor_cloud.provision.providers.gcp.data_sweep import GoogleApi, Json, google_api, status_of
from sailor_cloud.provision.providers.gcp.permissions import PERMISSIONS, PROGRAM_PERMISSIONS
from sailor_cloud.provision.providers.gcp.sweep import GCP
from sailor_cloud.provision.rendering.data import may_have_data

_PROJECTS = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER", "https://cloudresourcemanager.googleapis.com")
_BIGQUERY = ("CLOUDSDK_API_ENDPOINT_OVERRIDES_BIGQUERY", "https://bigquery.googleapis.com")
# The most permissions in one request.
_AT_ONCE = 100
# Terraform prefers this variable's token to all other credentials; it lasts at most an hour.
_TOKEN = "GOOGLE_OAUTH_ACCESS_TOKEN"
_BILL = """
SELECT
  service.description, currency,
  SUM(cost) + SUM(IFNULL((SELECT SUM(credit.amount) FROM UNNEST(credits) AS credit), 0)),
  FORMAT_TIMESTAMP('%FT%TZ', MAX(usage_end_time))
FROM `{table}`
WHERE EXISTS (SELECT 1 FROM UNNEST(labels) AS label WHERE label.key = @key AND label.value = @run)
GROUP BY 1, 2 ORDER BY 3 DESC
"""


def credentials_expiry() -> CredentialsExpiry | None:
    """Return when the caller's credentials end for good; None if google-auth renews them, or there are none."""
    if os.environ.get(_TOKEN):
        renew = f"unset {_TOKEN} and {HOW}"
        return CredentialsExpiry(credentials=f"the credentials in {_TOKEN}", expires_at=None, renewal_hint=renew)
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
    except ImportError:
        return None
    if os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "").startswith("http://"):
        return None
    try:
        credentials: Any = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])[0]
    except GoogleAuthError:
        return None
    # A token without a refresh token.
    if not hasattr(credentials, "refresh_token") or credentials.refresh_token is not None:
        return None
    at = credentials.expiry.replace(tzinfo=UTC) if credentials.expiry else None
    return CredentialsExpiry(credentials="the Google Cloud credentials", expires_at=at, renewal_hint=HOW)


def check_caller(cloud: Cloud) -> None:
    """Ask the project for one permission. Raises CredentialsError without credentials, or if they are refused."""
    if cloud.gcp is None:
        return
    try:
        _granted(cloud.gcp.project, ["compute.instances.create"])
    except CredentialsError:
        raise
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error


def _granted(project: str, asked: list[str]) -> set[str]:
    """Return those of some permissions that the caller has on a project."""
    granted = set[str]()
    projects = google_api(*_PROJECTS)
    for first in range(0, len(asked), _AT_ONCE):
        body = {"permissions": asked[first : first + _AT_ONCE]}
        granted |= set(projects.post(f"/v1/projects/{project}:testIamPermissions", body).get("permissions", ()))
    return granted


def _refused(error: Exception) -> CredentialsError | None:
    """Return the error for credentials that Google Cloud refuses; None for any other error."""
    if status_of(error) == 401 or type(error).__name__ == "RefreshError":
        return CredentialsError(f"Google Cloud refuses the credentials: {error}; {HOW}")
    return None


def missing_permissions(document: PlanDocument, kinds: Collection[str]) -> MissingPermissions:
    """Return the permissions that a run needs and the caller lacks on the project.

    `kinds` are the types that Terraform would create. Raises CredentialsError.
    """
    account = document.job.cloud.gcp
    if account is None:
        return MissingPermissions()
    private = document.job.cloud.network is NetworkAccess.PRIVATE
    wanted = {right for kind in kinds for right in PERMISSIONS.get(kind, ())} | set(PROGRAM_PERMISSIONS["host keys"])
    wanted |= set(PROGRAM_PERMISSIONS["tunnel"]) if private else set()
    if "google_storage_bucket" not in kinds:
        # A user's bucket may be in another project, or have rights of its own.
        wanted = {right for right in wanted if not right.startswith("storage.")}
    wanted |= PROGRAM_PERMISSIONS["sweep"] | (
        PROGRAM_PERMISSIONS["sweep of other kinds"] if may_have_data(document.job) else set()
    )
    asked = sorted(wanted)
    try:
        granted = _granted(account.project, asked)
    except CredentialsError:
        raise
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error
        return MissingPermissions(unchecked_reason=_error_message(error))
    return MissingPermissions(names=tuple(right for right in asked if right not in granted))


def fetch_bill(run_id: str, cloud: Cloud) -> ProviderBill:
    """Return the billing export's amounts for a run's label. Raises CredentialsError or ProvisionError."""
    account = cloud.gcp
    if account is None or account.billing_export is None:
        switch_on = (
            "name the table of the billing account's export to BigQuery as cloud.gcp.billing_export, such as "
            "my-billing.export.gcp_billing_export_v1_0123AB_4567CD_89EF01; the console switches the export on under "
            "Billing, Billing export, and it holds what is used from then on"
        )
        return ProviderBill(provider=GCP, currency="USD", lines=(), until=None, switch_on=switch_on)
    try:
        rows = _rows(google_api(*_BIGQUERY), account.project, account.billing_export, run_id)
    except CredentialsError:
        raise
    except Exception as error:
        if (refused := _refused(error)) is not None:
            raise refused from error
        raise ProvisionError(
            f"the billing export {account.billing_export} can't be read: {_error_message(error)}; it needs "
            f"bigquery.jobs.create on {account.project} and bigquery.tables.getData on the table"
        ) from error
    times = [datetime.fromisoformat(until) for *_, until in rows]
    return ProviderBill(
        provider=GCP,
        currency=str(rows[0][1]) if rows else "USD",
        lines=tuple((str(service), float(amount)) for service, _, amount, _ in rows),
        until=max(times, default=None),
        notes=("the export is up to a day late; Cloud NAT and its addresses carry no labels and are not in it",),
    )


def _rows(bigquery: GoogleApi, project: str, table: str, run_id: str) -> list[list[str]]:
    values = {"key": RUN_LABEL, "run": run_id}
    response = bigquery.post(
        f"/bigquery/v2/projects/{project}/queries",
        {
            "query": _BILL.format(table=table),
            "useLegacySql": False,
            "parameterMode": "NAMED",
            "queryParameters": [
                {"name": name, "parameterType": {"type": "STRING"}, "parameterValue": {"value": value}}
                for name, value in values.items()
            ],
        },
    )
    job = response.get("jobReference", {})
    place = {"location": job["location"]} if "location" in job else {}
    rows = list(response.get("rows", ()))
    while not response["jobComplete"] or "pageToken" in response:
        page = {"pageToken": response["pageToken"]} if response["jobComplete"] else {}
        response = bigquery.request("GET", f"/bigquery/v2/projects/{project}/queries/{job['jobId']}", **place, **page)
        rows += response.get("rows", ())
    return [[cell["v"] for cell in row["f"]] for row in rows]


def _error_message(error: Exception) -> str:
    """Return an interface's answer, which its exception does not repeat."""
    response = getattr(error, "response", None)
    try:
        answer: Json = response.json() if response is not None else {}
        return str(answer["error"]["message"])
    except (KeyError, ValueError, TypeError):
        return str(error)
