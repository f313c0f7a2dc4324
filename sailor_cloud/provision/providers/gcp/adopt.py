"""Import ids on Google Cloud, where a run chooses the names, which identify everything."""

from __future__ import annotations

from collections.abc import Iterable

from sailor_cloud.provision.adoptable import Adoptable, PlannedCreation
from sailor_cloud.provision.live_resources import LiveResource, Scope, Scopes
from sailor_cloud.provision.providers.gcp.data_sweep import (
    ACCOUNT,
    BUCKET,
    FUNCTION,
    IAM,
    SCHEDULER,
    google_api,
    status_of,
)
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER
from sailor_cloud.provision.providers.gcp.sweep import PROJECT, google_client
from sailor_cloud.provision.rendering.root import Part, WantedRoot, owns_network

GLOBAL = ("google_compute_network", "google_compute_firewall")
_COLLECTIONS = {"google_compute_resource_policy": "resourcePolicies"}


# Created and deleted with an instance and in no state; and a right, which may be added repeatedly.
_LET_BE = ("google_compute_disk", MEMBER)


# Types that no search finds, by the interface and the name that identify them.
_PARTS = {
    "google_cloud_scheduler_job": (SCHEDULER, "projects/{project}/locations/{region}/jobs/{name}"),
    "google_project_iam_custom_role": (IAM, "projects/{project}/roles/{role_id}"),
}


class GcpAdoptable(Adoptable):
    def __init__(self, root: WantedRoot) -> None:
        self._root = root
        self._project = root.variables["project"]
        self.scopes = Scopes({Scope(provider=root.provider, kind=PROJECT, name=self._project)})

    def belongs_to_root(self, resource: LiveResource) -> bool:
        if resource.type in _LET_BE:
            return False
        of_data = resource.type in (ACCOUNT, BUCKET, FUNCTION)
        if of_data or self._root.part is Part.DATA:
            return of_data and self._root.part is Part.DATA
        return owns_network(self._root.variables) if resource.type in GLOBAL else resource.region == self._root.region

    def find_match(self, planned: PlannedCreation, orphans: Iterable[LiveResource]) -> LiveResource | None:
        name = planned.after.get("account_id" if planned.type == ACCOUNT else "name")
        same = (orphan for orphan in orphans if orphan.type == planned.type)
        return next((orphan for orphan in same if orphan.name.partition("@")[0] == name), None)

    def import_id(self, resource: LiveResource) -> str:
        if resource.type == BUCKET:
            return resource.name
        if resource.type == ACCOUNT:
            return f"projects/{resource.project}/serviceAccounts/{resource.name}"
        if resource.type == FUNCTION:
            return f"projects/{resource.project}/locations/{resource.region}/functions/{resource.name}"
        place = f"zones/{resource.zone}" if resource.zone else f"regions/{resource.region}"
        if resource.type in GLOBAL:
            place = "global"
        collection = _COLLECTIONS.get(resource.type, f"{resource.type.removeprefix('google_compute_')}s")
        return f"projects/{resource.project}/{place}/{collection}/{resource.name}"

    def part_id(self, planned: PlannedCreation) -> str | None:
        if planned.type in _PARTS:
            interface, form = _PARTS[planned.type]
            known = form.format(project=self._project, **planned.after)
            try:
                google_api(*interface).request("GET", f"/v1/{known}")
            except Exception as error:
                if status_of(error) == 404:
                    return None
                raise
            return known
        if planned.type != "google_compute_router_nat":
            return None
        region, router, name = (planned.after.get(key) for key in ("region", "router", "name"))
        try:
            found = google_client("RoutersClient").get(project=self._project, region=region, router=router)
        except Exception as error:
            if getattr(error, "code", None) == 404:
                return None
            raise
        names = [nat.name for nat in found.nats]
        return f"projects/{self._project}/regions/{region}/routers/{router}/{name}" if name in names else None
