"""A local HTTP server that emulates Cloud Billing, Cloud Quotas and the price-related part of Compute Engine.

It paginates, and on request throttles, fails, lies or never answers. Real google-cloud-billing and google-cloud-compute
clients reach it through gcloud's endpoint variables, which `environment` returns.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from sailor_cloud.testing.http_api import Answer, Ask, serving

Json = dict[str, Any]


@dataclass(slots=True)
class Fault:
    """Answers `times` requests whose path contains `path` with an HTTP status instead of data."""

    path: str
    status: int
    times: int = 1


@dataclass(slots=True)
class GoogleWorld:
    """The data of the server. Zones missing from either map of types have none of that kind.

    `unreachable` zones are listed with a warning, as Compute Engine does for zones that do not answer.
    """

    skus: list[Json] = field(default_factory=list)
    machine_types: dict[str, list[Json]] = field(default_factory=dict)
    accelerator_types: dict[str, list[Json]] = field(default_factory=dict)
    reservations: dict[str, list[Json]] = field(default_factory=dict)
    region_quotas: dict[str, list[Json]] = field(default_factory=dict)
    project_quotas: list[Json] = field(default_factory=list)
    family_quotas: list[Json] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)


def sku(
    description: str,
    usd_per_unit: float,
    *,
    regions: Sequence[str],
    spot: bool = False,
    group: str = "CPU",
    unit: str = "h",
) -> Json:
    """Return a SKU of Compute Engine in the form of the Cloud Billing Catalog."""
    units = int(usd_per_unit)
    price = {"currencyCode": "USD", "units": str(units), "nanos": round((usd_per_unit - units) * 1e9)}
    return {
        "name": f"services/6F81-5844-456A/skus/{zlib.crc32(repr((description, spot, *regions)).encode()):08X}",
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": "Compute",
            "resourceGroup": group,
            "usageType": "Preemptible" if spot else "OnDemand",
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-01T00:00:00Z",
                "pricingExpression": {"usageUnit": unit, "tieredRates": [{"startUsageAmount": 0, "unitPrice": price}]},
            }
        ],
    }


def machine_type(
    name: str, vcpus: int, memory_gib: float, *, accelerator: str = "", count: int = 0, local_ssds: int = 0
) -> Json:
    """Return a machine type in the form of Compute Engine's list."""
    kind: Json = {"name": name, "guestCpus": vcpus, "memoryMb": int(memory_gib * 1024)}
    if accelerator:
        kind["accelerators"] = [{"guestAcceleratorType": accelerator, "guestAcceleratorCount": count}]
    if local_ssds:
        kind["bundledLocalSsds"] = {"defaultInterface": "NVME", "partitionCount": local_ssds}
    return kind


class FakeGoogle:
    """The server; use it as a context manager."""

    def __init__(self, world: GoogleWorld | None = None, *, page_size: int = 3) -> None:
        self.world = world or GoogleWorld()
        self.page_size = page_size
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.silent_path: str | None = None
        self._stopped = threading.Event()
        self.endpoint = ""
        self._served = ExitStack()

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables that point sailor-cloud's Google clients here."""
        return {
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.endpoint}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING": self.endpoint,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDQUOTAS": self.endpoint,
            "GOOGLE_CLOUD_PROJECT": "fake-project",
        }

    def __enter__(self) -> Self:
        self.endpoint = self._served.enter_context(serving(self._answered))
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._served.close()

    def _answered(self, ask: Ask) -> Answer | None:
        found = self.answer(ask.path)
        return None if found is None else Answer(status=found[0], body=json.dumps(found[1]).encode())

    def answer(self, url: str) -> tuple[int, Json] | None:
        """Return status and body for a GET, None for a request that never gets an answer."""
        parts = urlsplit(url)
        self.requests.append(parts.path)
        if self.silent_path is not None and self.silent_path in parts.path:
            self._stopped.wait()
            return None
        for fault in self.faults:
            if fault.path in parts.path and fault.times > 0:
                fault.times -= 1
                return fault.status, _error(fault.status, "said by a fault of the fake")
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/quotaInfos/GPUS-PER-GPU-FAMILY-per-project-region"):
            return 200, {"dimensionsInfos": self.world.family_quotas}
        if parts.path.endswith("/skus"):
            return 200, self._page("skus", self.world.skus, query)
        if parts.path.endswith("/aggregated/machineTypes"):
            return 200, self._aggregated("machineTypes", self.world.machine_types, query)
        if parts.path.endswith("/aggregated/acceleratorTypes"):
            return 200, self._aggregated("acceleratorTypes", self.world.accelerator_types, query)
        if parts.path.endswith("/aggregated/reservations"):
            return 200, self._aggregated("reservations", self.world.reservations, query)
        return self._quotas(parts.path)

    def _quotas(self, path: str) -> tuple[int, Json]:
        segments = path.rstrip("/").split("/")
        if segments[-2] == "regions" and segments[-1] in self.world.region_quotas:
            return 200, {"name": segments[-1], "quotas": self.world.region_quotas[segments[-1]]}
        if segments[-2] == "projects":
            return 200, {"name": segments[-1], "quotas": self.world.project_quotas}
        return 404, _error(404, f"The resource '{path}' was not found")

    def _page(self, key: str, rows: Sequence[Json], query: Mapping[str, str]) -> Json:
        start = int(query.get("pageToken") or 0)
        end = start + self.page_size
        return {key: list(rows[start:end]), "nextPageToken": str(end) if end < len(rows) else ""}

    def _aggregated(self, kind: str, by_zone: Mapping[str, list[Json]], query: Mapping[str, str]) -> Json:
        zones = sorted({*self.world.machine_types, *self.world.accelerator_types, *self.world.unreachable})
        start = int(query.get("pageToken") or 0)
        end = start + self.page_size
        items: Json = {}
        for zone in zones[start:end]:
            if zone in self.world.unreachable:
                warning = {"code": "UNREACHABLE", "message": f"zone {zone} can't be reached"}
            elif by_zone.get(zone):
                items[f"zones/{zone}"] = {kind: by_zone[zone]}
                continue
            else:
                warning = {"code": "NO_RESULTS_ON_PAGE", "message": f"no results in zone {zone}"}
            items[f"zones/{zone}"] = {"warning": warning}
        answer: Json = {"kind": f"compute#{kind}AggregatedList", "items": items}
        if end < len(zones):
            answer["nextPageToken"] = str(end)
        return answer


def _error(status: int, message: str) -> Json:
    return {"error": {"code": status, "message": message, "errors": [{"message": message, "reason": "fault"}]}}
