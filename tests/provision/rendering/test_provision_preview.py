"""What a dry run tells, against what Terraform creates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.cloud_plans import (
    AWS_OFFERS,
    GCP_OFFERS,
    aws_document,
    cloud_document,
    cloud_offer,
    efa_document,
    gcp_document,
    two_regions_document,
    with_job,
)
from factories.cloud_stacks import CALLER, stacks
from factories.documents import document
from sailor_cloud import catalog
from sailor_cloud.catalog import Service, Services
from sailor_cloud.errors import MissingPriceError, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import AwsAccount, GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.rendering.preview import PlannedRoot, preview
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.units import HOURS_PER_MONTH, usd_text

FOLDER = RunFolder(run_id="tiny-20261121-051313-a1b2", path=Path("/runs/tiny-20261121-051313-a1b2"))
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg=="
EXPIRES_AT = datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC)


def previewed(
    planned: PlanDocument, *, ssh_from: str | None = CALLER, services: Services | None = None
) -> tuple[PlannedRoot, ...]:
    return preview(planned, FOLDER, public_key=KEY, expires_at=EXPIRES_AT, ssh_from=ssh_from, services=services)


def private_links() -> PlanDocument:
    return with_job(two_regions_document(), network=NetworkAccess.PRIVATE)


def private_gcp() -> PlanDocument:
    return with_job(gcp_document(), to="gs://my-bucket", network=NetworkAccess.PRIVATE)


def watched_aws() -> PlanDocument:
    account = AwsAccount(watchdog=True)
    return with_job(efa_document(), to="s3://my-bucket", aws=account)


def watched_gcp() -> PlanDocument:
    return with_job(gcp_document(), gcp=GcpAccount(project="my-project", watchdog=True))


def watched_folder() -> PlanDocument:
    return with_job(aws_document(), to="/data/checkpoints", aws=AwsAccount(watchdog=True))


@pytest.mark.parametrize(
    "document",
    [gcp_document, private_gcp, watched_gcp, aws_document, watched_aws, watched_folder, private_links],
    ids=lambda made: made.__name__,
)
def test_a_preview_lists_exactly_what_terraform_creates(tmp_path: Path, document: Callable[[], PlanDocument]) -> None:
    planned = document()
    private = planned.job.cloud.network is NetworkAccess.PRIVATE
    with stacks(tmp_path, planned, ssh_from=None if private else CALLER) as made:
        made.apply()
        told = [resource for root in made.roots for resource in root.resources]
        created = made.cloud.resources
        assert Counter(resource.type for resource in told) == Counter(kind for kind, _ in created)
        named = {(kind, state["name"]) for (kind, _), state in created.items() if state.get("name")}
        listed = {(resource.type, resource.name) for resource in told}
        # An instance on AWS has a number for a name; here it is told by the name that its tag shows.
        named |= {(kind, state["tags"]["Name"]) for (kind, _), state in created.items() if kind == "aws_instance"}
        assert named - listed == set()


def test_the_hourly_price_of_each_resource_is_reported_with_its_parts() -> None:
    services = catalog.load().services
    disk = services.price(Provider("gcp"), "us-central1", Service.DISK_BALANCED).usd_per_unit * 100 / HOURS_PER_MONTH
    address = services.price(Provider("gcp"), "us-central1", Service.PUBLIC_ADDRESS).usd_per_unit
    _, root = previewed(cloud_document(("n0", GCP_OFFERS[0])))
    (instance,) = [resource for resource in root.resources if resource.type == "google_compute_instance"]
    assert instance.parts == (("machine", 1.5), ("disk", pytest.approx(disk)), ("address", pytest.approx(address)))
    assert instance.usd_per_hour == pytest.approx(1.5 + disk + address)
    assert [resource for resource in root.resources if resource.usd_per_hour is not None] == [instance]


def test_the_shipped_price_of_hyperdisk_stands_in_the_preview_with_its_source() -> None:
    ultra = cloud_offer("ultra", Provider("gcp"), "us-central1-b", "a3-ultragpu-8g", "H200-141", 8, spot=True)
    _, root = previewed(cloud_document(("n0", ultra), image=None))
    (parts,) = [resource.parts for resource in root.resources if resource.type == "google_compute_instance"]
    # 100 GiB at 0.08 USD a month of 730 hours.
    assert dict(parts)["disk"] == pytest.approx(0.010958904)
    price = catalog.load_services().price(Provider("gcp"), "us-central1", Service.DISK_HYPERDISK)
    assert (price.source, price.confidence.value) == ("gcp-hyperdisk-restated", "low")


def test_the_prices_next_to_machines_are_those_of_the_whole_catalog() -> None:
    assert catalog.load_services().all() == catalog.load().services.all()


def test_nat_and_addresses_of_a_private_network_are_priced() -> None:
    services = catalog.load().services
    roots = previewed(private_links(), ssh_from=None)
    cluster = next(root for root in roots if root.region == "us-west-2")
    prices = {r.type: r.usd_per_hour for r in cluster.resources if r.usd_per_hour and r.type != "aws_instance"}
    assert prices == {
        "aws_nat_gateway": services.price(Provider("aws"), "us-west-2", Service.NAT_GATEWAY).usd_per_unit,
        "aws_eip": services.price(Provider("aws"), "us-west-2", Service.PUBLIC_ADDRESS).usd_per_unit,
    }
    (instance,) = [resource for resource in cluster.resources if resource.type == "aws_instance"]
    assert [what for what, _ in instance.parts] == ["machine", "disk"]


def test_cloud_nat_is_priced_with_the_address_that_it_takes_and_what_passes_through_it() -> None:
    services = catalog.load().services
    (nat, *_) = [
        resource
        for root in previewed(with_job(gcp_document(), network=NetworkAccess.PRIVATE), ssh_from=None)
        for resource in root.resources
        if resource.type == "google_compute_router_nat"
    ]
    assert [what for what, _ in nat.parts] == ["gateway", "address"]
    prices = [
        services.price(Provider("gcp"), "europe-west4", service)
        for service in (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS, Service.NAT_DATA)
    ]
    assert nat.usd_per_hour == prices[0].usd_per_unit + prices[1].usd_per_unit
    assert nat.by_use == f"{usd_text(prices[2].usd_per_unit)} USD per GiB that passes"


def test_resources_that_cost_by_use_say_so() -> None:
    told = {r.type: r.by_use for root in previewed(private_links(), ssh_from=None) for r in root.resources if r.by_use}
    assert told == {
        "aws_s3_bucket": "per GiB kept, see checkpoints in the plan",
        "aws_nat_gateway": "0.0450 USD per GB that passes",
        "aws_vpc_peering_connection": "per GB carried, see egress in the plan",
    }


def test_an_unknown_price_stops_the_preview() -> None:
    with pytest.raises(MissingPriceError, match="no price for disk-balanced in gcp us-central1"):
        previewed(cloud_document(("n0", GCP_OFFERS[0])), services=Services([]))


def test_local_nodes_are_previewed_without_any_cloud_settings() -> None:
    (root,) = previewed(document(), ssh_from=None)
    assert [(resource.name, resource.usd_per_hour) for resource in root.resources] == [("n0", 0.2), ("n1", 0.1)]
    assert not FOLDER.path.exists()


def test_settings_that_a_cloud_needs_are_requested() -> None:
    with pytest.raises(RequestError, match="--ssh-from: is missing"):
        previewed(gcp_document(), ssh_from=None)


def test_two_clouds_of_64_nodes_are_previewed_at_once() -> None:
    offers = (*GCP_OFFERS, *AWS_OFFERS)
    planned = cloud_document(*((f"n{index}", offers[index % len(offers)]) for index in range(64)))
    begun = time.process_time()
    roots = previewed(planned)
    assert time.process_time() - begun < 5.0
    priced = [resource for root in roots for resource in root.resources if resource.usd_per_hour is not None]
    assert len(priced) == 64
    assert [root.stack for root in roots] == ["aws", "gcp-data", "gcp", "gcp"]


def test_prices_are_those_of_the_offers() -> None:
    dear = replace(GCP_OFFERS[2], usd_per_hour=9.5)
    _, root = previewed(cloud_document(("n0", dear)))
    assert [resource.parts[0] for resource in root.resources if resource.parts] == [("machine", 9.5)]
