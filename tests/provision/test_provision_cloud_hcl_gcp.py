"""What the HCL makes on Google Cloud, with a real Terraform core and a stand-in provider of the official schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.cloud_plans import gcp_document, with_job
from factories.cloud_stacks import CALLER, Stacks, stacks
from factories.reserved import gcp_reserved_document
from sailor_cloud import catalog
from sailor_cloud.model.job import GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.run.folder import resource_name, resource_prefix

pytestmark = pytest.mark.xdist_group("cloud-hcl-gcp")
WATCHED = GcpAccount(project="my-project", watchdog=True)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    with stacks(tmp_path_factory.mktemp("public"), gcp_document()) as made:
        made.apply()
        yield made


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    """The root of what outlives the nodes, which is the first."""
    with stacks(tmp_path_factory.mktemp("watched"), with_job(gcp_document(), gcp=WATCHED)) as made:
        made.drivers[0].plan()
        made.drivers[0].apply()
        yield made


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    document = with_job(gcp_document(), to="gs://my-bucket/runs", gcp=WATCHED)
    with stacks(tmp_path_factory.mktemp("named"), document) as made:
        made.drivers[0].plan()
        made.drivers[0].apply()
        yield made


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stacks]:
    account = GcpAccount(project="my-project", service_account="mine@my-project.iam.gserviceaccount.com")
    document = with_job(gcp_document(), to="gs://my-bucket/runs", network=NetworkAccess.PRIVATE, gcp=account)
    with stacks(tmp_path_factory.mktemp("private"), document, ssh_from=None) as made:
        made.apply()
        yield made


def test_every_instance_ends_at_the_expiry_without_help(public: Stacks) -> None:
    for state in public.instances("google_compute_instance").values():
        (scheduling,) = state["scheduling"]
        assert scheduling["termination_time"] == "2026-11-21T06:00:30Z"
        assert scheduling["instance_termination_action"] == "DELETE"
        assert scheduling["on_host_maintenance"] == "TERMINATE"
        assert scheduling["automatic_restart"] is False


def test_reservations_and_flex_start_are_bought_as_the_providers_schema_has_them(tmp_path: Path) -> None:
    """Through a real Terraform core and the official schema; no rule of Compute Engine's API is in either."""
    with stacks(tmp_path, gcp_reserved_document()) as made:
        made.apply()
        nodes = made.instances("google_compute_instance")
    flex, standing, calendar = (nodes[name]["scheduling"][0] for name in ("n0", "n1", "n2"))
    assert (flex["provisioning_model"], flex["termination_time"]) == ("FLEX_START", None)
    assert 0 < flex["max_run_duration"][0]["seconds"] <= 7 * 86400
    assert (standing["provisioning_model"], standing["max_run_duration"]) == ("STANDARD", [])
    assert (calendar["provisioning_model"], calendar["max_run_duration"]) == ("RESERVATION_BOUND", [])
    ends = {standing["termination_time"], calendar["termination_time"]}
    assert ends == {"2026-11-21T06:00:30Z"}
    affinities = [nodes[name]["reservation_affinity"] for name in ("n0", "n1", "n2")]
    named = {"key": "compute.googleapis.com/reservation-name"}
    assert affinities == [
        [{"type": "NO_RESERVATION", "specific_reservation": []}],
        [{"type": "SPECIFIC_RESERVATION", "specific_reservation": [{**named, "values": ["team-a100"]}]}],
        [{"type": "SPECIFIC_RESERVATION", "specific_reservation": [{**named, "values": ["calendar-1"]}]}],
    ]


def test_a_watchdog_is_called_with_its_own_account_which_may_do_so_until_a_week_after_the_end(watched: Stacks) -> None:
    name, project = resource_prefix(watched.run.run_id), "my-project"
    function, job = watched.one("google_cloudfunctions2_function"), watched.one("google_cloud_scheduler_job")
    account = f"{name}-watchdog@{project}.iam.gserviceaccount.com"
    (service,) = function["service_config"]
    assert service["environment_variables"] == {
        "RUN": watched.run.run_id,
        "NAME": name,
        "PROJECT": project,
        "REGION": function["location"],
        "DUE_AT": "2026-11-21T06:15:30Z",
        "BUCKET": f"{name}-data",
    }
    assert service["service_account_email"] == account
    (target,) = job["http_target"]
    assert target["uri"] == service["uri"]
    assert target["oidc_token"] == [{"service_account_email": account, "audience": service["uri"]}]
    role = watched.one("google_project_iam_custom_role")
    members = watched.cloud.of_type("google_project_iam_member").values()
    assert {member["member"] for member in members} == {f"serviceAccount:{account}"}
    assert {member["role"]: member["condition"][0]["expression"] for member in members} == {
        role["id"]: 'request.time < timestamp("2026-11-28T06:15:30Z")',
        "roles/artifactregistry.writer": 'request.time < timestamp("2026-11-21T06:15:30Z")',
        "roles/logging.logWriter": 'request.time < timestamp("2026-11-21T06:15:30Z")',
        "roles/storage.objectViewer": 'request.time < timestamp("2026-11-21T06:15:30Z")',
    }
    assert function["build_config"][0]["service_account"].endswith(f"/serviceAccounts/{account}")
    assert not [
        right for right in role["permissions"] if right.startswith("storage.") or right.endswith("setIamPolicy")
    ]


def test_the_watchdog_ignores_a_bucket_of_the_user(named: Stacks) -> None:
    (service,) = named.one("google_cloudfunctions2_function")["service_config"]
    assert service["environment_variables"]["BUCKET"] == ""
    granted = {
        state["bucket"]: state["role"] for state in named.cloud.of_type("google_storage_bucket_iam_member").values()
    }
    watchdogs = resource_name(named.run.run_id, "watchdog")
    assert granted == {"my-bucket": "roles/storage.objectUser", watchdogs: "roles/storage.admin"}


def test_spot_is_asked_for_where_it_was_planned(public: Stacks) -> None:
    instances = public.instances("google_compute_instance")
    models = {name: state["scheduling"][0]["provisioning_model"] for name, state in instances.items()}
    assert models == {"n0": "SPOT", "n1": "SPOT", "n2": "STANDARD", "n3": "STANDARD"}


def test_accelerators_are_attached_where_the_type_has_none_built_in(public: Stacks) -> None:
    instances = public.instances("google_compute_instance")
    attached = {name: [(a["type"], a["count"]) for a in s["guest_accelerator"]] for name, s in instances.items()}
    assert attached == {"n0": [], "n1": [], "n2": [("nvidia-tesla-v100", 2)], "n3": []}


def test_neighbours_of_one_type_are_placed_close_together(public: Stacks) -> None:
    instances = public.instances("google_compute_instance")
    policies = public.cloud.of_type("google_compute_resource_policy").values()
    assert {state["group_placement_policy"][0]["collocation"] for state in policies} == {"COLLOCATED"}
    assert instances["n0"]["resource_policies"] == instances["n1"]["resource_policies"] != []
    # N1 machines can't be placed compactly, and the job allows no second G2 machine.
    assert not instances["n2"]["resource_policies"]
    assert not instances["n3"]["resource_policies"]


def test_network_cards_are_gvnic_and_no_machine_with_accelerators_is_sold_tier_1(public: Stacks) -> None:
    for state in public.instances("google_compute_instance").values():
        assert [face["nic_type"] for face in state["network_interface"]] == ["GVNIC"]
        assert state["network_performance_config"] == []
    # Tier_1 is for these series (see modules/gcp-cluster/main.tf); a type of theirs in the catalog would call for it.
    tier_1 = ("n2-", "n2d-", "c2-", "c2d-", "c3-")
    bought = catalog.load().offers(provider=Provider("gcp"))
    assert not [offer.instance_type for offer in bought if offer.instance_type.startswith(tier_1)]


def test_images_have_drivers_unless_they_would_not_run_the_device(public: Stacks) -> None:
    for state in public.instances("google_compute_instance").values():
        image = state["boot_disk"][0]["initialize_params"][0]["image"]
        assert ("nvidia-580" in image) is not any("v100" in found["type"] for found in state["guest_accelerator"])
        assert state["metadata"]["install-nvidia-driver"] == "True"


def test_nodes_may_write_to_the_runs_bucket_and_nothing_else(public: Stacks) -> None:
    account, bucket = public.one("google_service_account"), public.one("google_storage_bucket")
    member = public.one("google_storage_bucket_iam_member")
    assert (member["bucket"], member["role"]) == (bucket["name"], "roles/storage.objectUser")
    assert member["member"] == f"serviceAccount:{account['email']}"
    for state in public.instances("google_compute_instance").values():
        (granted,) = state["service_account"]
        assert granted["email"] == account["email"]
        assert granted["scopes"] == ["https://www.googleapis.com/auth/devstorage.read_write"]
        assert state["metadata"]["block-project-ssh-keys"] == "TRUE"


def test_the_runs_bucket_is_private_stands_in_the_first_nodes_region_and_keeps_what_is_in_it(public: Stacks) -> None:
    bucket = public.one("google_storage_bucket")
    assert bucket["location"] == "us-central1"
    assert bucket["public_access_prevention"] == "enforced"
    assert bucket["uniform_bucket_level_access"] is True
    assert bucket["force_destroy"] is True
    assert bucket["soft_delete_policy"][0]["retention_duration_seconds"] == 0
    assert [rule["action"][0]["type"] for rule in bucket["lifecycle_rule"]] == ["AbortIncompleteMultipartUpload"]
    assert public.roots[0].stack == "gcp-data"


def test_all_regions_share_one_network(public: Stacks) -> None:
    network = public.one("google_compute_network")
    subnets = public.cloud.of_type("google_compute_subnetwork").values()
    assert {subnet["ip_cidr_range"] for subnet in subnets} == {"10.64.0.0/16", "10.65.0.0/16"}
    assert {subnet["network"].rpartition("/")[2] for subnet in subnets} == {network["name"]}


def test_only_ssh_from_the_caller_and_training_among_the_nodes_come_in(public: Stacks) -> None:
    (tag,) = {tuple(state["tags"]) for state in public.instances("google_compute_instance").values()}
    open_ports = {
        tuple(state["source_ranges"] or state["source_tags"]): {
            (a["protocol"], *sorted(a["ports"])) for a in state["allow"]
        }
        for state in public.cloud.of_type("google_compute_firewall").values()
    }
    assert open_ports == {(CALLER,): {("tcp", "22")}, tag: {("tcp", "29500-29599", "32768-60999")}}


def test_everything_carries_run_owner_and_expiry_from_its_creation(public: Stacks) -> None:
    run = f"sailor-cloud-run={public.run.run_id}"
    for (kind, name), state in public.cloud.resources.items():
        if kind == "google_storage_bucket_iam_member":
            continue
        told = " ".join(f"{key}={value}" for key, value in (state.get("labels") or {}).items())
        told += state.get("description") or ""
        assert run in told, (kind, name)
        assert "sailor-cloud-owner=me_example_org" in told, (kind, name)
        assert "sailor-cloud-expires=2026-11-21t06-00-30z" in told, (kind, name)


def test_the_boot_script_downloads_nothing_holds_no_secret_and_pins_the_open_ports(public: Stacks) -> None:
    for state in public.instances("google_compute_instance").values():
        script = state["metadata"]["startup-script"]
        assert "net.ipv4.ip_local_port_range = 32768 60999" in script
        assert "NCCL_NET" not in script
        assert not [word for word in ("curl", "wget", "apt", "pip", "http", "PRIVATE KEY", "token") if word in script]


def test_private_nodes_go_out_through_nat_and_are_reached_through_identity_aware_proxy(private: Stacks) -> None:
    assert all(node["address"] == node["private_address"] for node in private.nodes.values())
    routers = private.cloud.of_type("google_compute_router").values()
    gateways = private.cloud.of_type("google_compute_router_nat").values()
    assert (
        {router["region"] for router in routers}
        == {nat["region"] for nat in gateways}
        == {
            "europe-west4",
            "us-central1",
        }
    )
    sources = [state["source_ranges"] for state in private.cloud.of_type("google_compute_firewall").values()]
    assert [ranges for ranges in sources if ranges] == [["35.235.240.0/20"]]


def test_a_bucket_of_the_users_is_not_made_and_nodes_act_as_the_account_that_was_named(private: Stacks) -> None:
    assert not private.cloud.of_type("google_storage_bucket")
    assert not private.cloud.of_type("google_service_account")
    # The account had its rights before and keeps them afterwards.
    assert not private.cloud.of_type("google_storage_bucket_iam_member")
    emails = {state["service_account"][0]["email"] for state in private.instances("google_compute_instance").values()}
    assert emails == {"mine@my-project.iam.gserviceaccount.com"}
    assert {root.stack for root in private.roots} == {"gcp"}


def test_nodes_without_a_bucket_have_no_rights_at_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    with stacks(tmp_path_factory.mktemp("folder"), with_job(gcp_document(), to="/data/checkpoints")) as made:
        made.apply()
        assert [root.stack for root in made.roots] == ["gcp", "gcp"]
        states = made.instances("google_compute_instance").values()
        assert [state["service_account"] for state in states] == [[]] * 4
