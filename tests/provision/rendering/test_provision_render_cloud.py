"""The variables of the roots for Google Cloud and AWS."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from factories.reserved import aws_reserved_document, gcp_reserved_document
from sailor_cloud import resources
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import AwsAccount, Cloud, NetworkAccess, Resource, StateBackend
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.providers.aws.provider import PORTS
from sailor_cloud.provision.providers.gcp.machines import BLACKWELL_IMAGE, DEFAULT_GCP_IMAGE, IMAGE_WITHOUT_DRIVER
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import WantedRoot, roots, variables_text, write_root
from sailor_cloud.run.folder import RunFolder

GOLDEN = Path(__file__).parent / "golden"
SETTINGS: dict[str, Any] = {
    "folder": RunFolder(run_id="opt-350m-20261121-051313-a1b2", path=Path("/runs/opt-350m-20261121-051313-a1b2")),
    "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg==",
    "expires_at": datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC),
    "ssh_from": "203.0.113.7/32",
}


def rendered(document: PlanDocument, **changes: Any) -> tuple[WantedRoot, ...]:
    return rendered_roots(document, **{**SETTINGS, **changes})


GOLDENS = {
    "gcp": gcp_document(),
    "aws": with_job(aws_document(), aws=AwsAccount(watchdog=True)),
    "links": with_job(two_regions_document(), to="s3://my-bucket/runs", network=NetworkAccess.PRIVATE),
    "efa": with_job(efa_document(), to="/data/checkpoints"),
    "capacity": with_job(aws_reserved_document(), to="/data/checkpoints"),
    "flex": with_job(gcp_reserved_document(), to="/data/checkpoints"),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_variables_are_as_agreed(name: str) -> None:
    texts = {f"{name}-{root.stack}-{root.region}": variables_text(root.variables) for root in rendered(GOLDENS[name])}
    agreed = {path.name.removesuffix(".tfvars.json"): path.read_text() for path in GOLDEN.glob(f"{name}-*.tfvars.json")}
    assert texts == agreed


def test_there_is_one_cluster_per_provider_and_region() -> None:
    document = cloud_document(*((f"n{index}", offer) for index, offer in enumerate(GCP_OFFERS + AWS_OFFERS)))
    roots = rendered(document)
    assert [(root.stack, root.region) for root in roots] == [
        ("aws", "us-east-1"),
        ("gcp-data", "us-central1"),
        ("gcp", "europe-west4"),
        ("gcp", "us-central1"),
    ]
    clusters = [root for root in roots if "nodes" in root.variables]
    assert sorted(name for root in clusters for name in root.variables["nodes"]) == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("devices", "most", "grouped"), [(0, None, False), (1, None, False), (2, None, True), (2, 1, False)]
)
def test_a_lone_node_gets_a_placement_group_if_the_job_allows_it_a_neighbour(
    devices: int, most: int | None, grouped: bool
) -> None:
    a2 = GCP_OFFERS[0]
    document = cloud_document(("n0", a2), image=None)
    entry = Resource(
        provider=a2.provider, zones=(a2.zone,), markets=(a2.market,), accelerators={"A100-40": devices or 1}
    )
    limits = document.job.constraints.model_copy(update={"max_nodes": most})
    changes = {"resources": (entry,) if devices else (), "constraints": limits}
    (root,) = [r for r in rendered(replace(document, job=document.job.model_copy(update=changes))) if r.nodes]
    assert root.variables["nodes"]["n0"]["compact"] is grouped


@pytest.mark.parametrize(
    ("market", "document", "grouped"),
    [
        ("block", aws_reserved_document(), False),
        ("on-demand", aws_document(), True),
        ("reservation", gcp_reserved_document(), False),
        ("flex-start", gcp_reserved_document(), True),
    ],
)
def test_nodes_in_reserved_capacity_join_no_placement_group_of_the_run(
    market: str, document: PlanDocument, grouped: bool
) -> None:
    """A block refuses nodes of a group, and a reservation those with a policy that it lacks."""
    held = {"block": "n0", "on-demand": "n0", "reservation": "n1", "flex-start": "n0"}[market]
    (root,) = [root for root in rendered(document) if held in root.variables.get("nodes", {})]
    assert root.variables["nodes"][held]["compact"] is grouped


def test_an_a3_ultra_boots_from_hyperdisk() -> None:
    ultra = cloud_offer("ultra", Provider("gcp"), "us-central1-b", "a3-ultragpu-8g", "H200-141", 8, spot=True)
    roots = rendered(cloud_document(("n0", ultra), ("n1", GCP_OFFERS[0]), image=None))
    (root,) = [root for root in roots if root.nodes]
    assert {name: node["boot_disk"] for name, node in root.variables["nodes"].items()} == {
        "n0": "hyperdisk-balanced",
        "n1": "pd-balanced",
    }


def test_one_region_makes_the_network_and_the_others_use_it() -> None:
    _, first, second = rendered(gcp_document())
    assert first.variables["network"] is None
    assert second.variables["network"] == f"projects/my-project/global/networks/{first.variables['name']}-net"
    assert first.variables["cidr"] != second.variables["cidr"]


def test_roots_are_destroyed_in_the_reverse_of_the_order_in_which_they_are_applied(tmp_path: Path) -> None:
    for document in (gcp_document(), two_regions_document()):
        folder = RunFolder.create(f"tiny-{len(list(tmp_path.iterdir()))}", root=tmp_path)
        applied = rendered(document)
        for root in applied:
            write_root(folder, root.provider, root.region, root.variables, stack=root.stack)
        destroyed = [(root.stack, root.region) for root in roots(folder)]
        # Clusters of AWS don't need each other, so any order of theirs will do.
        expected = [(root.stack, root.region) for root in reversed(applied)]
        assert [stack for stack, _ in destroyed] == [stack for stack, _ in expected]
        assert sorted(destroyed) == sorted(expected)
    assert [root.region for root in roots(RunFolder.open("tiny-0", root=tmp_path))][:2] == [
        "us-central1",
        "europe-west4",
    ]


def test_every_pair_of_aws_regions_is_joined() -> None:
    third = replace(AWS_OFFERS[1], id="third", region="eu-west-1", zone="euw1-az1")
    document = two_regions_document()
    assert document.plan is not None
    nodes = (*document.plan.nodes, replace(document.plan.nodes[0], id="n2", offer="third"))
    wider = replace(
        document,
        plan=replace(document.plan, nodes=nodes),
        inputs=replace(document.inputs, offers=(*document.inputs.offers, third)),
    )
    links = [root for root in rendered(wider) if root.stack == "aws-links"]
    assert [root.region for root in links] == [
        "eu-west-1--us-east-1",
        "eu-west-1--us-west-2",
        "us-east-1--us-west-2",
    ]
    assert {root.variables["ports"]["rendezvous"]["first"] for root in links} == {29500}


def test_ports_are_those_that_the_placement_module_opens() -> None:
    text = (resources.data_root() / "terraform" / "modules" / "placement" / "main.tf").read_text()
    for name, ports in PORTS.items():
        assert f"{name} = {{ first = {ports['first']}, last = {ports['last']} }}" in " ".join(text.split())


def test_a_private_network_has_no_door_for_ssh() -> None:
    document = with_job(gcp_document(), network=NetworkAccess.PRIVATE)
    clusters = [root for root in rendered(document, ssh_from=None) if root.stack == "gcp"]
    assert {root.variables["ssh_from"] for root in clusters} == {None}


def test_the_runs_bucket_stands_where_the_first_node_does() -> None:
    data, *_ = rendered(gcp_document())
    assert (data.stack, data.region) == ("gcp-data", "us-central1")
    assert data.variables["bucket"] == {"name": "sc-e6abe7721b-data", "own": True}


@pytest.mark.parametrize(
    ("document", "to", "profile", "stacks", "identity"),
    [
        (aws_document(), None, None, ["aws-data", "aws"], "sc-e6abe7721b-node"),
        (aws_document(), None, "mine", ["aws-data", "aws"], "mine"),
        (aws_document(), "s3://b/runs", None, ["aws-data", "aws"], "sc-e6abe7721b-node"),
        (aws_document(), "s3://b/runs", "mine", ["aws"], "mine"),
        (aws_document(), "/data", None, ["aws"], None),
    ],
    ids=["own", "own-profile", "named", "named-profile", "folder"],
)
def test_nodes_act_as_what_the_bucket_needs_or_the_user_has_prepared(
    document: PlanDocument, to: str | None, profile: str | None, stacks: list[str], identity: str | None
) -> None:
    roots = rendered(with_job(document, to=to, aws=AwsAccount(instance_profile=profile)))
    assert [root.stack for root in roots] == stacks
    assert roots[-1].variables["identity"] == identity


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("s3://b/runs", "checkpoint.to: is s3://b/runs, which nodes on gcp have no rights for"),
        ("gs://", "checkpoint.to: is 'gs://'"),
    ],
)
def test_checkpoints_go_to_a_bucket_that_nodes_can_reach(to: str, message: str) -> None:
    with pytest.raises(RequestError, match=re.escape(message)):
        rendered(with_job(gcp_document(), to=to))


def test_states_stay_in_the_run_unless_a_bucket_is_named() -> None:
    assert {root.backend for root in rendered(gcp_document())} == {None}


def test_each_root_has_a_state_of_its_own_in_the_bucket_that_was_named() -> None:
    google = rendered(with_job(gcp_document(), state=StateBackend(bucket="gs://states")))
    assert [root.backend for root in google] == [
        {
            "terraform": {
                "backend": {"gcs": {"bucket": "states", "prefix": f"sailor-cloud/{SETTINGS['folder'].run_id}/{root}"}}
            }
        }
        for root in ("gcp-data-us-central1", "gcp-europe-west4", "gcp-us-central1")
    ]
    amazon = rendered(
        with_job(aws_document(), state=StateBackend(bucket="s3://states", prefix="a/b", region="us-east-1"))
    )
    assert amazon[-1].backend == {
        "terraform": {
            "required_version": ">= 1.10",
            "backend": {
                "s3": {
                    "bucket": "states",
                    "key": f"a/b/{SETTINGS['folder'].run_id}/aws-us-east-1.tfstate",
                    "region": "us-east-1",
                    "encrypt": True,
                    "use_lockfile": True,
                }
            },
        }
    }


def test_efa_is_asked_for_only_where_every_node_can_use_it() -> None:
    assert machines_with_efa(efa_document()) == {"n0": [0, 1, 2, 3], "n1": [0, 1, 2, 3]}
    assert machines_with_efa(aws_document()) == {"n0": [], "n1": [], "n2": []}
    alone = cloud_document(("n0", AWS_OFFERS[0]))
    assert machines_with_efa(alone) == {"n0": []}
    elsewhere = replace(AWS_OFFERS[0], id="elsewhere", zone="use1-az6")
    assert machines_with_efa(cloud_document(("n0", AWS_OFFERS[0]), ("n1", elsewhere))) == {"n0": [], "n1": []}


def machines_with_efa(document: PlanDocument) -> dict[str, list[int]]:
    return {name: node["efa_cards"] for name, node in rendered(document)[-1].variables["nodes"].items()}


def test_images_are_the_clouds_own_unless_the_job_names_one() -> None:
    assert images(gcp_document()) == {DEFAULT_GCP_IMAGE, IMAGE_WITHOUT_DRIVER}
    assert images(efa_document()) == {
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    }
    assert images(aws_document()) == {"ami-0123456789abcdef0"}
    arm = replace(AWS_OFFERS[1], instance_type="g5g.xlarge", accelerator="T4G-16")
    assert "/ami/arm64/" in images(cloud_document(("n0", arm), image=None)).pop()


@pytest.mark.parametrize(
    ("instance_type", "accelerator", "image"),
    [
        ("n1-standard-8", "P4-8", IMAGE_WITHOUT_DRIVER),
        ("n1-standard-8", "P100-16", IMAGE_WITHOUT_DRIVER),
        ("n1-standard-8", "V100-16", IMAGE_WITHOUT_DRIVER),
        ("n1-standard-8", "T4-16", DEFAULT_GCP_IMAGE),
        ("a3-highgpu-8g", "H100-80", DEFAULT_GCP_IMAGE),
        ("a4-highgpu-8g", "B200-180", BLACKWELL_IMAGE),
    ],
)
def test_images_on_google_cloud_have_kernel_modules_for_the_device(
    instance_type: str, accelerator: str, image: str
) -> None:
    offer = cloud_offer("one", Provider("gcp"), "us-central1-a", instance_type, accelerator, 1)
    assert images(cloud_document(("n0", offer), image=None)) == {image}
    assert images(cloud_document(("n0", offer), image="my-image")) == {"my-image"}


def images(document: PlanDocument) -> set[str]:
    return {node["image"] for root in rendered(document) for node in root.variables.get("nodes", {}).values()}


def test_an_instance_type_that_no_image_of_awss_serves_needs_one_from_the_user() -> None:
    volta = replace(AWS_OFFERS[1], instance_type="p3.2xlarge", accelerator="V100-16")
    with pytest.raises(RequestError, match=r"cloud\.image: is missing \(add an AMI with drivers for p3\.2xlarge"):
        rendered(cloud_document(("n0", volta), image=None))
    assert images(cloud_document(("n0", volta))) == {"ami-0123456789abcdef0"}


def test_an_image_of_one_region_serves_no_other() -> None:
    with pytest.raises(RequestError, match="which one region has, and the plan has nodes in us-east-1 and us-west-2"):
        rendered(with_job(two_regions_document(), image="ami-0123456789abcdef0"))
    assert images(with_job(two_regions_document(), image="/mine")) == {"/mine"}


def test_a_spot_node_may_cost_what_the_worst_case_reckons_with() -> None:
    document = aws_document()
    assert document.cost is not None
    cost = replace(document.cost, usd_per_hour=2.0, worst_case_usd_per_hour=3.0)
    root = rendered(replace(document, cost=cost))[-1]
    prices = {name: node["max_usd_per_hour"] for name, node in root.variables["nodes"].items()}
    assert prices == {"n0": 2.25, "n1": 2.25, "n2": 1.5}


def test_a_spot_node_may_cost_no_more_than_the_budget_pays_for_until_the_ttl() -> None:
    document = aws_document()
    assert document.cost is not None
    cost = replace(document.cost, usd_per_hour=3.0, worst_case_usd_per_hour=30.0)
    limits = document.constraints.model_copy(update={"budget_usd": 8.0})
    root = rendered(replace(document, cost=cost, constraints=limits, ttl_s=7200.0))[-1]
    prices = {name: node["max_usd_per_hour"] for name, node in root.variables["nodes"].items()}
    # Both spot nodes cost 1.5 USD/h now; 8 USD in two hours leave 4 USD/h for both.
    spot = [price for name, price in prices.items() if name != "n2"]
    assert sum(spot) <= 4.0
    assert sum(spot) == pytest.approx(4.0, abs=1e-3)


def test_everything_that_the_job_lacks_is_reported_together() -> None:
    document = cloud_document(("n0", GCP_OFFERS[0]), ("n1", AWS_OFFERS[0]))
    bare = replace(document, job=document.job.model_copy(update={"cloud": Cloud()}))
    with pytest.raises(RequestError) as caught:
        rendered(bare, ssh_from=None)
    assert [problem.path for problem in caught.value.problems] == [
        "cloud.owner",
        "--ssh-from",
        "cloud.gcp.project",
    ]


def test_an_accelerator_that_can_not_be_attached_is_refused() -> None:
    wrong = replace(GCP_OFFERS[1], accelerator="L4-24")
    with pytest.raises(RequestError, match=r"plan\.nodes\.n0: L4-24 can't be attached to n1-standard-8"):
        rendered(cloud_document(("n0", wrong)))


def test_owners_become_valid_labels_on_google_cloud_and_stay_as_they_are_on_aws() -> None:
    google, amazon = rendered(gcp_document())[0], rendered(aws_document())[0]
    assert google.variables["labels"]["sailor-cloud-owner"] == "me_example_org"
    assert amazon.variables["labels"]["sailor-cloud-owner"] == "Me@example.org"
