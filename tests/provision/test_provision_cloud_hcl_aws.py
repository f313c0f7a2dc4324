"""What the HCL makes on AWS, with a real Terraform core and a stand-in provider of the official schema."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import aws_document, efa_document, two_regions_document, with_job
from factories.cloud_stacks import CALLER, Stacks, stacks
from sailor_cloud.catalog.machine_types import load_machine_types
from sailor_cloud.model.job import AwsAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.rendering.root import root_of
from sailor_cloud.resources import data_root
from sailor_cloud.run.folder import resource_name, resource_prefix
from sailor_cloud.testing.terraform.naming import IMAGE

pytestmark = pytest.mark.xdist_group("cloud-hcl-aws")
AWS = Provider("aws")
HCL = data_root() / "terraform"


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    document = with_job(aws_document(), aws=AwsAccount(watchdog=True))
    with stacks(tmp_path_factory.mktemp("public"), document) as made:
        made.apply()
        yield made


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("fast"), efa_document()) as made:
        made.apply()
        yield made


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    document = with_job(two_regions_document(), network=NetworkAccess.PRIVATE, to="/data/checkpoints")
    with stacks(tmp_path_factory.mktemp("private"), document, ssh_from=None) as made:
        made.apply()
        yield made


def policy_of(stacks: Stacks) -> list[dict[str, Any]]:
    statements: list[dict[str, Any]] = json.loads(
        stacks.one_named("aws_iam_role_policy", resource_name(stacks.run.run_id, "node"))["policy"]
    )["Statement"]
    return statements


def test_every_instance_ends_itself_by_its_own_timer(public: Stacks) -> None:
    for state in public.instances("aws_instance").values():
        assert state["instance_initiated_shutdown_behavior"] == "terminate"
        assert "OnCalendar=2026-11-21 06:00:30 UTC" in state["user_data"]
        assert "Persistent=true" in state["user_data"]
        # Should the clock be wrong, the node ends so long after its boot.
        assert re.search(r"^OnBootSec=[1-9]\d*s$", state["user_data"], re.MULTILINE)


def test_a_watchdog_knows_its_run_and_comes_15_minutes_after_the_end(public: Stacks) -> None:
    function, schedule = public.one("aws_lambda_function"), public.one("aws_scheduler_schedule")
    name = resource_name(public.run.run_id, "watchdog")
    assert function["environment"][0]["variables"] == {
        "RUN": public.run.run_id,
        "NAME": resource_prefix(public.run.run_id),
        "DUE_AT": "2026-11-21T06:15:30Z",
        "REGIONS": "us-east-1",
        "BUCKET": resource_name(public.run.run_id, "data"),
    }
    assert (schedule["start_date"], schedule["schedule_expression"]) == ("2026-11-21T06:15:30Z", "rate(15 minutes)")
    (target,) = schedule["target"]
    assert (target["arn"], target["role_arn"]) == (function["arn"], public.one_named("aws_iam_role", name)["arn"])
    package = root_of(public.run.folder, AWS, "us-east-1", stack="aws-data").path / "watchdog.zip"
    with zipfile.ZipFile(package) as archive:
        assert archive.read("main.py") == (HCL / "stacks" / "aws-data" / "watchdog.py").read_bytes()
    assert function["source_code_hash"] == b64encode(sha256(package.read_bytes()).digest()).decode()


def test_a_watchdog_may_delete_what_carries_its_runs_tag_and_nothing_else(public: Stacks) -> None:
    name = resource_prefix(public.run.run_id)
    policy = public.one_named("aws_iam_role_policy", f"{name}-watchdog")["policy"]
    for statement in json.loads(policy)["Statement"]:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        named = [statement["Resource"]] if isinstance(statement["Resource"], str) else statement["Resource"]
        if all(action.startswith("ec2:Describe") for action in actions):
            continue
        tagged = {"StringEquals": {"aws:ResourceTag/sailor-cloud-run": public.run.run_id}}
        assert statement.get("Condition") == tagged or all(name in arn for arn in named), statement


def test_without_one_nothing_of_a_watchdog_is_made(fast: Stacks) -> None:
    made = {kind for kind, _ in fast.cloud.resources}
    assert not made & {"aws_lambda_function", "aws_scheduler_schedule", "aws_cloudwatch_log_group"}


def test_user_data_is_a_shell_script_without_downloads_or_secrets(public: Stacks, tmp_path: Path) -> None:
    (key,) = {state["public_key"] for state in public.cloud.of_type("aws_key_pair").values()}
    for name, state in public.instances("aws_instance").items():
        script = tmp_path / name
        script.write_text(state["user_data"])
        assert "echo 'sailor ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/" in state["user_data"], "preparing needs sudo"
        checked = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")
        forbidden = ("curl", "wget", "apt", "pip", "http", "PRIVATE KEY", "aws_", "token")
        told = state["user_data"].replace(key, "")
        assert told != state["user_data"], "a key is of random letters, which may spell any word"
        assert not [word for word in forbidden if word in told]
        assert state["user_data"].index("sailor-cloud-expiry") < state["user_data"].index("ip_local_port_range")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_reads_the_end_of_life_as_the_expiry() -> None:
    told = subprocess.run(
        ["systemd-analyze", "calendar", "2026-11-21 06:00:30 UTC"], capture_output=True, text=True, check=True
    )
    assert "Normalized form: 2026-11-21 06:00:30 UTC" in told.stdout


def test_spot_has_a_ceiling_and_is_bought_once(public: Stacks) -> None:
    instances = public.instances("aws_instance")
    (market,) = instances["n0"]["instance_market_options"]
    (options,) = market["spot_options"]
    assert (market["market_type"], options["max_price"]) == ("spot", "1.5")
    assert (options["spot_instance_type"], options["instance_interruption_behavior"]) == ("one-time", "terminate")
    assert instances["n2"]["instance_market_options"] == []


def test_metadata_is_guarded_and_volumes_are_encrypted_and_tagged(public: Stacks) -> None:
    for name, state in public.instances("aws_instance").items():
        (metadata,) = state["metadata_options"]
        assert (metadata["http_tokens"], metadata["http_put_response_hop_limit"]) == ("required", 1)
        (disk,) = state["root_block_device"]
        assert (disk["encrypted"], disk["delete_on_termination"], disk["volume_type"]) == (True, True, "gp3")
        assert state["volume_tags"]["sailor-cloud-run"] == public.run.run_id
        assert state["volume_tags"]["sailor-cloud-node"] == name
        assert state["key_name"] == public.one("aws_key_pair")["key_name"]


def test_neighbours_of_one_type_are_placed_close_together(public: Stacks) -> None:
    instances = public.instances("aws_instance")
    groups = public.cloud.of_type("aws_placement_group").values()
    assert {state["strategy"] for state in groups} == {"cluster"}
    assert instances["n0"]["placement_group"] == instances["n1"]["placement_group"] is not None
    assert instances["n2"]["placement_group"] is None, "the job allows no second one"


def test_images_are_found_by_public_parameters(fast: Stacks) -> None:
    assert {state["ami"] for state in fast.instances("aws_instance").values()} == {IMAGE}


def test_each_zone_has_its_own_addresses_by_its_number(public: Stacks) -> None:
    zones = {s["availability_zone_id"]: s["cidr_block"] for s in public.cloud.of_type("aws_subnet").values()}
    assert zones == {"use1-az4": "10.64.64.0/20", "use1-az6": "10.64.96.0/20"}


def test_only_ssh_from_the_caller_and_training_among_the_nodes_come_in(public: Stacks) -> None:
    let_in = [
        (state["cidr_ipv4"] or state["referenced_security_group_id"], state["from_port"], state["to_port"])
        for state in public.cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    ]
    (group,) = public.cloud.of_type("aws_security_group")
    assert sorted(let_in) == sorted([(CALLER, 22, 22), (group, 29500, 29599), (group, 32768, 60999)])


def test_efa_is_left_out_where_not_all_nodes_could_use_it(public: Stacks) -> None:
    assert not public.cloud.of_type("aws_launch_template")


def test_nodes_of_one_zone_get_all_their_network_cards_with_efa(fast: Stacks) -> None:
    template = fast.one("aws_launch_template")
    cards = template["network_interfaces"]
    assert [(c["network_card_index"], c["device_index"], c["interface_type"]) for c in cards] == [
        (0, 0, "efa"),
        (1, 1, "efa"),
        (2, 1, "efa"),
        (3, 1, "efa"),
    ]
    (subnet,), (group,) = fast.cloud.of_type("aws_subnet"), fast.cloud.of_type("aws_security_group")
    assert all((card["subnet_id"], card["security_groups"]) == (subnet, [group]) for card in cards)
    (tags,) = template["tag_specifications"]
    assert (tags["resource_type"], tags["tags"]["sailor-cloud-run"]) == ("network-interface", fast.run.run_id)
    for state in fast.instances("aws_instance").values():
        assert state["launch_template"][0]["id"] == template["id"]


def test_efa_needs_everything_open_within_the_group_and_only_there(fast: Stacks) -> None:
    rules = fast.cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    (group,) = fast.cloud.of_type("aws_security_group")
    assert [s["referenced_security_group_id"] for s in rules if s["ip_protocol"] == "-1"] == [group]
    leaving = fast.cloud.of_type("aws_vpc_security_group_egress_rule").values()
    assert {state["referenced_security_group_id"] or state["cidr_ipv4"] for state in leaving} == {group, "0.0.0.0/0"}


def test_a_node_with_several_network_cards_gets_its_public_address_separately(fast: Stacks) -> None:
    addresses = {state["tags"]["sailor-cloud-node"]: state for state in fast.cloud.of_type("aws_eip").values()}
    assert {name: node["address"] for name, node in fast.nodes.items()} == {
        name: state["public_ip"] for name, state in addresses.items()
    }
    for name, state in fast.instances("aws_instance").items():
        assert addresses[name]["network_interface"] == state["primary_network_interface_id"]


def test_the_table_of_network_cards_is_that_of_ec2() -> None:
    packed = resources.files("moto.ec2") / "resources" / "instance_types.json.gz"
    known = json.loads(gzip.decompress(packed.read_bytes()))
    rows = {row.instance_type: row for row in load_machine_types() if row.provider == "aws"}
    sold = rows.keys() & known.keys()
    told = {name: known[name]["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0) for name in sold}
    assert {name: len(rows[name].efa_cards) for name in sold} == told
    cards = {name: known[name]["NetworkInfo"]["MaximumNetworkCards"] for name in sold}
    assert {name: rows[name].network_cards for name in sold} == cards
    bought = {name: set(known[name]["SupportedUsageClasses"]) - {"capacity-block"} for name in sold}
    assert {name: set(rows[name].markets) for name in sold} == bought
    arm = {name for name in sold if known[name]["ProcessorInfo"]["SupportedArchitectures"] == ["arm64"]}
    assert {name for name in sold if rows[name].image == "aws-arm64"} == arm
    assert max(told.values()) == 32
    assert all("cluster" in known[name]["PlacementGroupInfo"]["SupportedStrategies"] for name in sold)


def test_nodes_may_write_to_the_runs_bucket_and_nothing_else(public: Stacks) -> None:
    bucket = public.one("aws_s3_bucket")
    actions = {(statement["Resource"], action) for statement in policy_of(public) for action in statement["Action"]}
    arn = f"arn:aws:s3:::{bucket['bucket']}"
    verbs = ("AbortMultipartUpload", "DeleteObject", "GetObject", "PutObject")
    assert actions == {(arn, "s3:ListBucket"), *((f"{arn}/*", f"s3:{verb}") for verb in verbs)}
    profile = public.one("aws_iam_instance_profile")["name"]
    assert {state["iam_instance_profile"] for state in public.instances("aws_instance").values()} == {profile}


def test_the_runs_bucket_is_private_and_keeps_what_is_in_it(public: Stacks) -> None:
    assert public.one("aws_s3_bucket")["force_destroy"] is True
    access = public.one("aws_s3_bucket_public_access_block")
    closed = ("block_public_acls", "block_public_policy", "ignore_public_acls", "restrict_public_buckets")
    assert all(access[name] is True for name in closed)
    (rule,) = public.one("aws_s3_bucket_lifecycle_configuration")["rule"]
    assert rule["abort_incomplete_multipart_upload"][0]["days_after_initiation"] == 1
    assert rule["expiration"] == []


def test_everything_that_can_have_tags_carries_run_owner_and_expiry(public: Stacks, private: Stacks) -> None:
    without = {"aws_route", "aws_route_table_association", "aws_scheduler_schedule", "aws_iam_role_policy"}
    without |= {"aws_s3_bucket_public_access_block", "aws_s3_bucket_lifecycle_configuration"}
    for made in (public, private):
        for (kind, name), state in made.cloud.resources.items():
            if kind not in without:
                assert state["tags"]["sailor-cloud-run"] == made.run.run_id, (kind, name)
                assert state["tags"]["sailor-cloud-owner"] == "Me@example.org", (kind, name)
                assert "sailor-cloud-expires" in state["tags"], (kind, name)


def test_private_nodes_go_out_through_nat_and_to_s3_past_it(private: Stacks) -> None:
    assert all(node["address"] == node["private_address"] for node in private.nodes.values())
    gateways = private.cloud.of_type("aws_nat_gateway")
    assert len(gateways) == 2
    routes = private.cloud.of_type("aws_route").values()
    assert {state["nat_gateway_id"] for state in routes if state.get("nat_gateway_id")} == set(gateways)
    endpoints = private.cloud.of_type("aws_vpc_endpoint").values()
    services = ["com.amazonaws.us-east-1.s3", "com.amazonaws.us-west-2.s3"]
    assert sorted(state["service_name"] for state in endpoints) == services
    rules = private.cloud.of_type("aws_vpc_security_group_ingress_rule").values()
    assert not [state for state in rules if state["from_port"] == 22]


def test_private_nodes_may_carry_a_session_of_systems_manager_and_no_more(private: Stacks) -> None:
    (statement,) = policy_of(private)
    services = {action.partition(":")[0] for action in statement["Action"]}
    assert services == {"ssm", "ssmmessages"}
    assert [action for action in statement["Action"] if action.startswith("ssm:")] == ["ssm:UpdateInstanceInformation"]
    assert not private.cloud.of_type("aws_s3_bucket")


def test_two_regions_are_joined_with_routes_both_ways_and_training_ports_only(private: Stacks) -> None:
    assert [root.stack for root in private.roots] == ["aws-data", "aws", "aws", "aws-links"]
    link = private.one("aws_vpc_peering_connection")
    accepted = private.one("aws_vpc_peering_connection_accepter")
    assert (link["peer_region"], accepted["vpc_peering_connection_id"]) == ("us-west-2", link["id"])
    ranges = {s["id"]: s["cidr_block"] for s in private.cloud.of_type("aws_vpc").values()}
    assert {link["vpc_id"], link["peer_vpc_id"]} == set(ranges)
    routes = [s for s in private.cloud.of_type("aws_route").values() if s.get("vpc_peering_connection_id")]
    assert sorted(state["destination_cidr_block"] for state in routes) == sorted(ranges.values())
    tables = {s["id"]: ranges[s["vpc_id"]] for s in private.cloud.of_type("aws_route_table").values()}
    assert all(tables[state["route_table_id"]] != state["destination_cidr_block"] for state in routes)
    rules = [s for s in private.cloud.of_type("aws_vpc_security_group_ingress_rule").values() if s["cidr_ipv4"]]
    opened = sorted((state["cidr_ipv4"], state["from_port"], state["to_port"]) for state in rules)
    ports = ((29500, 29599), (32768, 60999))
    assert opened == [(found, *pair) for found in sorted(ranges.values()) for pair in ports]
