"""Clients of the Google Cloud APIs for prices and quotas."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sailor_cloud.catalog.account.quotas import QuotaLimits
from sailor_cloud.catalog.account.reservations import Reservation, ReservationKind
from sailor_cloud.errors import CredentialsError, MissingPackageError
from sailor_cloud.model.offer import Provider

HOW = "run 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
# Compute Engine reports no limit of this quota, which has one for each family of GPUs.
_FAMILY_METRIC = "GPUS_PER_GPU_FAMILY"
_FAMILY_QUOTA = (
    "v1/projects/{}/locations/global/services/compute.googleapis.com/quotaInfos/GPUS-PER-GPU-FAMILY-per-project-region"
)
_CLOUD_QUOTAS = "https://cloudquotas.googleapis.com"
_HOW_PROJECT = "set GOOGLE_CLOUD_PROJECT or give --project"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long a call may take, and how long a refused one is retried with growing pauses."""

    call_s: float = 60.0
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    total_s: float = 180.0


PATIENCE = RetryLimits()


def compute_endpoint() -> str | None:
    """Return the alternative address of Compute Engine from gcloud's variable; usually None.

    gcloud's documentation includes the version's path, which the clients add themselves.
    """
    given = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", "").rstrip("/")
    return given.removesuffix("/compute/v1") or None


class GcpAccount:
    """A project and the access to its APIs.

    gcloud's environment variables CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE, …_CLOUDBILLING and …_CLOUDQUOTAS change
    endpoints. Calls without TLS carry no credentials, so that a token never travels in clear text.
    """

    def __init__(self, project: str | None = None) -> None:
        self._patience = PATIENCE
        self._compute_endpoint = compute_endpoint()
        self._billing_endpoint = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING")
        self._quota_endpoint = os.environ.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDQUOTAS", _CLOUD_QUOTAS)
        self._credentials, own_project = self._find_credentials()
        found = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or own_project
        if not found:
            raise CredentialsError(f"no Google Cloud project; {_HOW_PROJECT}")
        self.project = found

    def aggregated(self, kind: str) -> Iterable[tuple[str, Any]]:
        """Return (scope, scoped list) of a kind, named as its client, for every zone of the project."""
        from google.cloud import compute_v1

        client = getattr(compute_v1, f"{kind}Client")(**self._options(self._compute_endpoint))
        request = getattr(compute_v1, f"AggregatedList{kind}Request")(project=self.project)
        pages: Iterator[tuple[str, Any]] = iter(client.aggregated_list(request=request, **self._call()))
        return pages

    def skus(self, service: str) -> Iterable[Any]:
        """Return the SKUs of a billed service."""
        from google.cloud import billing_v1

        client = billing_v1.CloudCatalogClient(transport="rest", **self._options(self._billing_endpoint))
        request = billing_v1.ListSkusRequest(parent=service, page_size=5000)
        return iter(client.list_skus(request=request, **self._call()))

    def region_quotas(self, region: str) -> Iterable[Any]:
        """Return the quotas of the project in a region: metric, limit, usage."""
        from google.cloud import compute_v1

        client = compute_v1.RegionsClient(**self._options(self._compute_endpoint))
        return list(client.get(project=self.project, region=region, **self._call()).quotas)

    def project_quotas(self) -> Iterable[Any]:
        """Return the quotas of the project as a whole."""
        from google.cloud import compute_v1

        client = compute_v1.ProjectsClient(**self._options(self._compute_endpoint))
        return list(client.get(project=self.project, **self._call()).quotas)

    def family_quotas(self) -> Mapping[str, Any]:
        """Return the quota on GPUs per family and region (Cloud Quotas API v1, QuotaInfo)."""
        from google.auth.transport.requests import AuthorizedSession

        plain = self._quota_endpoint.startswith("http://")
        session: Any = AuthorizedSession(_anonymous() if plain else self._credentials)  # type: ignore[no-untyped-call]
        answer = session.get(
            f"{self._quota_endpoint.rstrip('/')}/{_FAMILY_QUOTA.format(self.project)}",
            # With a user's own credentials, Google needs a project to count the request in.
            headers={"x-goog-user-project": self.project},
            timeout=self._patience.call_s,
        )
        answer.raise_for_status()
        found: Mapping[str, Any] = answer.json()
        return found

    def _find_credentials(self) -> tuple[Any, str | None]:
        try:
            import google.auth
            from google.auth.exceptions import DefaultCredentialsError
        except ImportError as error:
            raise MissingPackageError("google.cloud.compute_v1", "gcp") from error
        endpoints = (self._compute_endpoint, self._billing_endpoint)
        if all(endpoint is not None and endpoint.startswith("http://") for endpoint in endpoints):
            return _anonymous(), None
        try:
            credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        except DefaultCredentialsError as error:
            raise CredentialsError(f"no Google Cloud credentials; {HOW}") from error
        return credentials, project

    def _options(self, endpoint: str | None) -> dict[str, Any]:
        from google.api_core.client_options import ClientOptions

        if endpoint is None:
            return {"credentials": self._credentials}
        plain = endpoint.startswith("http://")
        return {
            "credentials": _anonymous() if plain else self._credentials,
            "client_options": ClientOptions(api_endpoint=endpoint.rstrip("/")),
        }

    def _call(self) -> dict[str, Any]:
        from google.api_core import exceptions, retry
        from requests.exceptions import ConnectionError as RequestsConnectionError

        return {
            "timeout": self._patience.call_s,
            "retry": retry.Retry(
                predicate=retry.if_exception_type(
                    exceptions.TooManyRequests,
                    exceptions.InternalServerError,
                    exceptions.BadGateway,
                    exceptions.ServiceUnavailable,
                    exceptions.GatewayTimeout,
                    RequestsConnectionError,
                ),
                initial=self._patience.first_pause_s,
                maximum=self._patience.longest_pause_s,
                multiplier=2.0,
                timeout=self._patience.total_s,
            ),
        }


def _anonymous() -> Any:
    from google.auth import credentials

    anonymous: Any = credentials.AnonymousCredentials
    return anonymous()


def read_limits(account: GcpAccount, region: str, what: str, missing: list[str]) -> QuotaLimits:
    """Return limit and use of every quota of a region, or of the whole project if the region is empty."""
    with gcp_errors(what, missing):
        quotas = account.region_quotas(region) if region else account.project_quotas()
        return {(Provider("gcp"), region, quota.metric): (quota.limit, quota.usage) for quota in quotas}
    return {}


def family_quota(family: str) -> str:
    """Return the name in quotas.csv of the quota on a family of GPUs."""
    return f"{_FAMILY_METRIC}:{family}"


def is_of_family(quota: str) -> bool:
    return quota.startswith(family_quota(""))


def read_family_limits(account: GcpAccount, missing: list[str]) -> QuotaLimits:
    """Return the limits of families of GPUs in all regions; Google Cloud does not report their use."""
    what = f"quotas on GPUs per family of {account.project} (Cloud Quotas API, cloudquotas.quotas.get)"
    found: dict[tuple[Provider, str, str], tuple[float, None]] = {}
    with gcp_errors(what, missing):
        rows = account.family_quotas().get("dimensionsInfos", ())
        # A row that names a region replaces that of all regions.
        for row in sorted(rows, key=lambda row: "region" in row.get("dimensions", {})):
            family = row.get("dimensions", {}).get("gpu_family")
            # JSON leaves out a value of 0; -1 is no limit.
            limit = float(row.get("details", {}).get("value", 0))
            if family is not None and limit >= 0:
                for region in row.get("applicableLocations", ()):
                    found[Provider("gcp"), region, family_quota(family)] = (limit, None)
    return found


def read_reservations(account: GcpAccount, regions: Sequence[str], missing: list[str]) -> list[Reservation]:
    """Return the project's reservations in regions: specific ones, which alone hold machines of a type."""
    found = []
    with gcp_errors("reservations", missing):
        for scope, listed in account.aggregated("Reservations"):
            zone = scope.removeprefix("zones/")
            region = zone.rpartition("-")[0]
            if region in regions:
                found += [
                    _reservation(row, region, zone) for row in listed.reservations if row.specific_reservation.count
                ]
    return found


def _reservation(row: Any, region: str, zone: str) -> Reservation:
    """Read one reservation (Compute Engine API v1, Reservation)."""
    held = row.specific_reservation
    guests = held.instance_properties.guest_accelerators
    attached = "".join(f" + {guest.accelerator_count} {guest.accelerator_type}" for guest in guests)
    return Reservation(
        provider=Provider("gcp"),
        region=region,
        zone=zone,
        id=row.name,
        kind=ReservationKind.GCP,
        instance_type=f"{held.instance_properties.machine_type}{attached}",
        count=held.count,
        free=held.count - held.in_use_count,
        state=row.status.lower(),
        starts_at=None,
        ends_at=datetime.fromisoformat(row.delete_at_time) if row.delete_at_time else None,
        taken_unasked=not row.specific_reservation_required,
    )


@contextmanager
def gcp_errors(what: str, missing: list[str]) -> Iterator[None]:
    """Name what could not be read in `missing`. Raises CredentialsError if Google refuses the credentials."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except (exceptions.Unauthorized, exceptions.Forbidden, GoogleAuthError) as error:
        raise CredentialsError(f"Google Cloud refused to read {what}: {_brief(error)}; {HOW}") from error
    except exceptions.RetryError as error:
        missing.append(f"gcp {what}: {_brief(error.cause or error)}")
    except (exceptions.GoogleAPIError, RequestException, ValueError) as error:
        missing.append(f"gcp {what}: {_brief(error)}")


def _brief(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
