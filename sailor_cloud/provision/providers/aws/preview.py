"""The resources that a root on AWS would create."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sailor_cloud.provision.providers.aws.sweep import BLOCK, RESERVATION
from sailor_cloud.provision.rendering.preview import (
    STORAGE,
    TRAFFIC,
    PlannedResource,
    node_kind,
    placement_groups,
    priced_resource,
    unpriced_resource,
)
from sailor_cloud.units import usd_text

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.preview import Bill

# The free monthly use of each part of the watchdog, in any account, also after its first year
# (docs.aws.amazon.com/whitepapers/latest/how-aws-pricing-works/lambda.html, aws.amazon.com/eventbridge/pricing and
# aws.amazon.com/cloudwatch/pricing). 15 minutes of 256 MB are 225 GB-s at 0.00001667 USD.
_WATCHDOG = {
    "aws_iam_role": "",
    "aws_iam_role_policy": "",
    "aws_lambda_function": "free up to 1 million calls and 400,000 GB-s a month; 0.004 USD for each 15 minutes beyond",
    "aws_scheduler_schedule_group": "",
    "aws_scheduler_schedule": "free up to 14 million calls a month",
}
_PER_ZONE = ("aws_subnet", "aws_route_table_association")


def cluster_resources(bill: Bill) -> list[PlannedResource]:
    variables, name = bill.variables, bill.variables["name"]
    nodes: dict[str, dict[str, Any]] = variables["nodes"]
    zones = sorted({node["zone"] for node in nodes.values()})
    place = f"{name}-{variables['region']}"
    efa = ["efa"] if any(node["efa_cards"] for node in nodes.values()) else []
    listed = [unpriced_resource(kind, place) for kind in ("aws_vpc", "aws_internet_gateway", "aws_route_table")]
    listed.append(unpriced_resource("aws_route", "0.0.0.0/0"))
    listed += [unpriced_resource(kind, f"{name}-{zone}") for kind in _PER_ZONE for zone in zones]
    listed += _nat(bill) if bill.private else []
    listed.append(unpriced_resource("aws_security_group", f"{name}-node"))
    overlay = ["WireGuard, one for each node on another cloud"] if "peers" in variables else []
    rules = [*([] if bill.private else ["ssh"]), "training rendezvous", "training collectives", *overlay, *efa]
    listed += [unpriced_resource("aws_vpc_security_group_ingress_rule", rule) for rule in rules]
    listed += [unpriced_resource("aws_vpc_security_group_egress_rule", rule) for rule in ("out", *efa)]
    listed.append(unpriced_resource("aws_key_pair", place))
    listed += [unpriced_resource("aws_placement_group", f"{name}-{group}") for group in placement_groups(variables)]
    kinds = sorted({node_kind(node) for node in nodes.values() if node["efa_cards"]})
    listed += [unpriced_resource("aws_launch_template", f"{name}-{kind}") for kind in kinds]
    for node, about in nodes.items():
        own_address = len(about["efa_cards"]) > 1 and not bill.private
        with_address = not own_address and not bill.private
        listed.append(bill.instance("aws_instance", f"{name}-{node}", node, address=with_address))
        if own_address:
            listed.append(priced_resource("aws_eip", f"{name}-{node}", ("address", bill.address)))
    return listed


def _nat(bill: Bill) -> list[PlannedResource]:
    name = f"{bill.variables['name']}-nat"
    kinds = (*_PER_ZONE, "aws_route_table", "aws_route")
    return [
        *(unpriced_resource(kind, name) for kind in kinds),
        priced_resource("aws_eip", name, ("address", bill.address)),
        priced_resource("aws_nat_gateway", name, ("gateway", bill.gateway), by_use=bill.nat_data),
        unpriced_resource("aws_vpc_endpoint", f"{bill.variables['name']}-s3"),
    ]


def link_resources(bill: Bill) -> list[PlannedResource]:
    name = f"{bill.variables['name']}-{bill.root.region}"
    regions = bill.variables["regions"]
    rules = [f"{region} training {ports}" for region in regions for ports in bill.variables["ports"]]
    return [
        unpriced_resource("aws_vpc_peering_connection", name, by_use=TRAFFIC),
        unpriced_resource("aws_vpc_peering_connection_accepter", name),
        *(unpriced_resource("aws_route", region) for region in regions),
        *(unpriced_resource("aws_vpc_security_group_ingress_rule", rule) for rule in rules),
    ]


def capacity_resources(bill: Bill) -> list[PlannedResource]:
    """Return the capacity that is bought separately: reservations by the hour, blocks at their total price."""
    name = bill.variables["name"]
    by_name = {p.offer.terms.name: p.offer for p in bill.root.nodes if p.offer.terms is not None}
    listed = [
        priced_resource(RESERVATION, f"{name}-{entry}", ("nodes", by_name[entry].usd_per_hour * about["nodes"]))
        for entry, about in bill.variables["reservations"].items()
    ]
    return listed + [
        unpriced_resource(
            BLOCK,
            f"{name}-{entry}",
            by_use=f"{usd_text(about['usd'])} USD at once; it can't be cancelled before {about['ends_at']}",
        )
        for entry, about in bill.variables["blocks"].items()
    ]


def data_resources(bill: Bill) -> list[PlannedResource]:
    bucket, listed = bill.variables["bucket"], []
    if bucket is not None and bucket["own"]:
        listed.append(unpriced_resource("aws_s3_bucket", bucket["name"], by_use=STORAGE))
        about = ("aws_s3_bucket_public_access_block", "aws_s3_bucket_lifecycle_configuration")
        listed += [unpriced_resource(kind, bucket["name"]) for kind in about]
    if bill.variables["watchdog_at"] is not None:
        name = f"{bill.variables['name']}-watchdog"
        listed += [unpriced_resource(kind, name, by_use=free_up_to) for kind, free_up_to in _WATCHDOG.items()]
        listed.append(
            unpriced_resource("aws_cloudwatch_log_group", f"/aws/lambda/{name}", by_use="free up to 5 GB a month")
        )
    if bill.variables["identity"] is None and (bucket is not None or bill.variables["tunnel"]):
        identity = ("aws_iam_role", "aws_iam_role_policy", "aws_iam_instance_profile")
        listed += [unpriced_resource(kind, f"{bill.variables['name']}-node") for kind in identity]
    return listed
