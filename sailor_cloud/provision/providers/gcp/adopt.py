"""Import ids on Google Cloud, where names are the run's own choice and lead to everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sailor_cloud.provision.adoptable import Planned
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.providers.gcp.data_sweep import ACCOUNT, BUCKET
from sailor_cloud.provision.providers.gcp.sweep import google_client

GLOBAL = ("google_compute_network", "google_compute_firewall")
_COLLECTIONS = {"google_compute_resource_policy": "resourcePolicies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpAdoptable:
    """See `adoptable.Adoptable`."""

    project: str

    def whole(self, planned: Planned, orphans: Iterable[LiveResource]) -> LiveResource | None:
        name = planned.after.get("account_id" if planned.type == ACCOUNT else "name")
        same = (orphan for orphan in orphans if orphan.type == planned.type)
        return next((orphan for orphan in same if orphan.name.partition("@")[0] == name), None)

    def import_id(self, resource: LiveResource) -> str:
        if resource.type == BUCKET:
            return resource.name
        if resource.type == ACCOUNT:
            return f"projects/{resource.project}/serviceAccounts/{resource.name}"
        place = f"zones/{resource.zone}" if resource.zone else f"regions/{resource.region}"
        if resource.type in GLOBAL:
            place = "global"
        collection = _COLLECTIONS.get(resource.type, f"{resource.type.removeprefix('google_compute_')}s")
        return f"projects/{resource.project}/{place}/{collection}/{resource.name}"

    def part_id(self, planned: Planned) -> str | None:
        if planned.type != "google_compute_router_nat":
            return None
        region, router, name = (planned.after.get(key) for key in ("region", "router", "name"))
        try:
            found = google_client("RoutersClient").get(project=self.project, region=region, router=router)
        except Exception as error:
            if getattr(error, "code", None) == 404:
                return None
            raise
        names = [nat.name for nat in found.nats]
        return f"projects/{self.project}/regions/{region}/routers/{router}/{name}" if name in names else None
