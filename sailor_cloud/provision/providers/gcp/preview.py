"""The resources that a root on Google Cloud would create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sailor_cloud.provision.rendering.preview import (
    STORAGE,
    PlannedResource,
    placement_groups,
    priced_resource,
    unpriced_resource,
)

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.preview import Bill


def cluster_resources(bill: Bill) -> list[PlannedResource]:
    variables, name = bill.variables, bill.variables["name"]
    listed = []
    overlay = ["overlay"] if "peers" in variables else []
    if variables["network"] is None:
        listed.append(unpriced_resource("google_compute_network", f"{name}-net"))
        listed += [
            unpriced_resource("google_compute_firewall", f"{name}-{rule}") for rule in ("ssh", "training", *overlay)
        ]
    listed.append(unpriced_resource("google_compute_subnetwork", f"{name}-{variables['region']}"))
    if bill.private:
        listed.append(unpriced_resource("google_compute_router", f"{name}-{variables['region']}"))
        # Cloud NAT allocates addresses itself; they are billed like those of VMs.
        parts = [("gateway", bill.gateway), ("address", bill.address)]
        listed.append(priced_resource("google_compute_router_nat", f"{name}-nat", *parts, by_use=bill.nat_data))
    listed += [
        unpriced_resource("google_compute_resource_policy", f"{name}-{group}") for group in placement_groups(variables)
    ]
    nodes = variables["nodes"]
    return listed + [
        bill.instance("google_compute_instance", f"{name}-{node}", node, address=not bill.private) for node in nodes
    ]


def _watchdog(bill: Bill) -> list[PlannedResource]:
    """Return the watchdog's parts, each with its free monthly use.

    The allowances are those of the whole billing account, also after its first year: cloud.google.com/scheduler/pricing
    (0.10 USD for a job of 31 days, by the day), /functions/pricing and /build/pricing.
    """
    name, bucket = f"{bill.variables['name']}-watchdog", bill.variables["bucket"]
    own = [bucket["name"]] if bucket is not None and bucket["own"] else []
    calls = "free up to 2 million calls, 400,000 GB-s and 2,500 minutes of building a month"
    return [
        unpriced_resource("google_cloud_scheduler_job", name, by_use="free up to 3 jobs, then 0.10 USD a month"),
        unpriced_resource("google_cloudfunctions2_function", name, by_use=calls),
        unpriced_resource("google_storage_bucket", name, by_use="some kB of code"),
        *(unpriced_resource("google_storage_bucket_iam_member", granted) for granted in (name, *own)),
        unpriced_resource("google_storage_bucket_object", "watchdog.zip"),
        unpriced_resource("google_service_account", name),
        unpriced_resource(
            "google_project_iam_custom_role", f"projects/{bill.variables['project']}/roles/{name.replace('-', '_')}"
        ),
        *(unpriced_resource("google_project_iam_member", granted) for granted in (name, *(f"{name}-build",) * 3)),
    ]


def data_resources(bill: Bill) -> list[PlannedResource]:
    bucket, listed = bill.variables["bucket"], []
    if bill.variables["watchdog_at"] is not None:
        listed += _watchdog(bill)
    if bucket is None:
        return listed
    if bucket["own"]:
        listed.append(unpriced_resource("google_storage_bucket", bucket["name"], by_use=STORAGE))
    if bill.variables["identity"] is None:
        listed.append(unpriced_resource("google_service_account", f"{bill.variables['name']}-node"))
    return [*listed, unpriced_resource("google_storage_bucket_iam_member", bucket["name"])]
