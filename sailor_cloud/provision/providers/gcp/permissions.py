"""The permissions that the caller needs on Google Cloud, for Terraform's resources and for the program itself.

`docs/permissions/gcp-role.yaml` allows exactly this.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


def _compute(collection: str, *verbs: str) -> set[str]:
    return {f"compute.{collection}.{verb}" for verb in verbs}


_LIFE = ("create", "get", "list", "delete")
PERMISSIONS: Mapping[str, Set[str]] = {
    "google_cloud_scheduler_job": {f"cloudscheduler.jobs.{verb}" for verb in ("create", "get", "delete")},
    "google_cloudfunctions2_function": {
        *(f"cloudfunctions.functions.{verb}" for verb in _LIFE),
        *("cloudfunctions.operations.get", "iam.serviceAccounts.actAs"),
    },
    "google_project_iam_custom_role": {f"iam.roles.{verb}" for verb in ("create", "get", "delete", "undelete")},
    "google_project_iam_member": {f"resourcemanager.projects.{verb}IamPolicy" for verb in ("get", "set")},
    "google_compute_firewall": _compute("firewalls", *_LIFE, "update") | _compute("networks", "updatePolicy"),
    "google_compute_instance": {
        *_compute("instances", *_LIFE, "setLabels", "setMetadata", "setServiceAccount", "setTags"),
        *_compute("disks", "create", "delete", "list", "setLabels"),
        *_compute("images", "getFromFamily", "useReadOnly"),
        *_compute("subnetworks", "use", "useExternalIp"),
        *_compute("resourcePolicies", "use"),
        *_compute("machineTypes", "get"),
        *_compute("zones", "get"),
        *_compute("zoneOperations", "get"),
        "iam.serviceAccounts.actAs",
    },
    "google_compute_network": _compute("networks", *_LIFE) | _compute("globalOperations", "get"),
    "google_compute_resource_policy": _compute("resourcePolicies", *_LIFE) | _compute("regionOperations", "get"),
    "google_compute_router": _compute("routers", *_LIFE) | _compute("regionOperations", "get"),
    "google_compute_router_nat": _compute("routers", "get", "update"),
    "google_compute_subnetwork": _compute("subnetworks", *_LIFE) | _compute("regionOperations", "get"),
    "google_service_account": {f"iam.serviceAccounts.{verb}" for verb in _LIFE},
    "google_storage_bucket": {
        *(f"storage.buckets.{verb}" for verb in _LIFE),
        *("storage.objects.list", "storage.objects.delete"),
    },
    "google_storage_bucket_object": {f"storage.objects.{verb}" for verb in ("create", "get", "delete")},
    "google_storage_bucket_iam_member": {"storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"},
}
PROGRAM_PERMISSIONS: Mapping[str, Set[str]] = {
    "sweep": {
        f"compute.{collection}.list"
        for collection in ["disks", "firewalls", "instances", "networks", "resourcePolicies", "routers", "subnetworks"]
    },
    # Whether or not the run has created them.
    "sweep of other kinds": {"cloudfunctions.functions.list", "iam.serviceAccounts.list", "storage.buckets.list"},
    "host keys": _compute("instances", "getGuestAttributes"),
    "results": {"storage.objects.get"},
    "tunnel": {"iap.tunnelInstances.accessViaIAP"},
    "prices and quotas": {
        *_compute("acceleratorTypes", "list"),
        *_compute("reservations", "list"),
        *_compute("machineTypes", "list"),
        *_compute("projects", "get"),
        *_compute("regions", "get"),
        *_compute("zones", "list"),
        # The second one lets Google count the request in the project.
        *("cloudquotas.quotas.get", "serviceusage.services.use"),
    },
}
