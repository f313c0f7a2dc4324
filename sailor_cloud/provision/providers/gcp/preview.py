"""What a root on Google Cloud would create."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sailor_cloud.provision.rendering.planned_resources import STORAGE, PlannedResource, free, placement_groups, priced

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.preview import Bill


def cluster_resources(bill: Bill) -> list[PlannedResource]:
    variables, name = bill.variables, bill.variables["name"]
    listed = []
    if variables["network"] is None:
        listed.append(free("google_compute_network", f"{name}-net"))
        listed += [free("google_compute_firewall", f"{name}-{rule}") for rule in ("ssh", "training")]
    listed.append(free("google_compute_subnetwork", f"{name}-{variables['region']}"))
    if bill.private:
        listed.append(free("google_compute_router", f"{name}-{variables['region']}"))
        # Cloud NAT takes addresses by itself, and they are billed as those of VMs are.
        parts = [("gateway", bill.gateway), ("address", bill.address)]
        listed.append(priced("google_compute_router_nat", f"{name}-nat", *parts, by_use=bill.nat_data))
    listed += [free("google_compute_resource_policy", f"{name}-{group}") for group in placement_groups(variables)]
    nodes = variables["nodes"]
    return listed + [
        bill.instance("google_compute_instance", f"{name}-{node}", node, address=not bill.private) for node in nodes
    ]


def data_resources(bill: Bill) -> list[PlannedResource]:
    bucket, listed = bill.variables["bucket"], []
    if bucket["own"]:
        listed.append(free("google_storage_bucket", bucket["name"], by_use=STORAGE))
    if bill.variables["identity"] is None:
        listed.append(free("google_service_account", f"{bill.variables['name']}-node"))
    return [*listed, free("google_storage_bucket_iam_member", bucket["name"])]
