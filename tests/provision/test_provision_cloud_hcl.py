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
from sailor_cloud.provision.terraform.driver import TerraformCommandError
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve


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


@pytest.mark.parametrize("document", [efa_document, private_links], ids=["efa", "private-links"])
def test_a_plan_is_created_exactly_and_destroyed_completely(
    tmp_path: Path, document: Callable[[], PlanDocument]
) -> None:
    """What most plans have goes the whole way in test_provision_cloud_lifecycle.py, with every kind of Terraform."""
    planned = document()
    assert planned.plan is not None
    private = planned.job.cloud.network is NetworkAccess.PRIVATE
    with stacks(tmp_path, planned, ssh_from=None if private else "203.0.113.7/32") as made:
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
        # What outlives the nodes is made first and destroyed last.
        created, deleted = (
            [kind for step, kind, _ in made.cloud.history if step == wanted] for wanted in ("created", "deleted")
        )
        assert created.index("aws_s3_bucket") < created.index("aws_instance")
        assert "aws_instance" not in deleted[deleted.index("aws_s3_bucket") :]


def test_a_change_touches_what_it_is_about_and_nothing_else(tmp_path: Path) -> None:
    with stacks(tmp_path, aws_document()) as made:
        made.apply()
        before = {name: state["id"] for name, state in made.instances("aws_instance").items()}

        # Another address of the caller's changes the rule and no node.
        cluster = drivers_of(made.run, made.roots, made.attached, changes={"ssh_from": "198.51.100.9/32"})[-1]
        cluster.plan()
        cluster.apply()
        sources = {s["cidr_ipv4"] for s in made.cloud.of_type("aws_vpc_security_group_ingress_rule").values()}
        assert sources == {"198.51.100.9/32", None}
        assert {name: state["id"] for name, state in made.instances("aws_instance").items()} == before

        # A neighbour that goes leaves the others as they are.
        fewer = {name: node for name, node in made.roots[-1].variables["nodes"].items() if name != "n1"}
        changes = {"ssh_from": "198.51.100.9/32", "nodes": fewer}
        cluster = drivers_of(made.run, made.roots, made.attached, changes=changes)[-1]
        cluster.plan()
        assert "Plan: 0 to add, 0 to change, 1 to destroy." in cluster.show_plan()
        cluster.apply()
        left = {name: state["id"] for name, state in made.instances("aws_instance").items()}
        assert left == {name: before[name] for name in ("n0", "n2")}


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
        ("aws-data", {"watchdog_at": "tomorrow"}, ("must be in RFC 3339 form",)),
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
