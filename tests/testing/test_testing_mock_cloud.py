"""The fixtures for users' tests: a fake instance is a machine that answers SSH until the cloud deletes it."""

from __future__ import annotations

import asyncio
import os
import urllib.request
from pathlib import Path

import asyncssh
import pytest

from factories.local_runs import expiry
from factories.running_agent import wait_until
from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local.spec import PORT, VmInfo
from sailor_cloud.testing.mock_cloud import MockCloud
from sailor_cloud.testing.terraform.cloud import CloudError

pytest_plugins = ["sailor_cloud.testing.pytest_plugin"]
KEY = asyncssh.generate_private_key("ssh-ed25519")
PUBLIC = KEY.export_public_key().decode().strip()


def gcp_instance(mocked: MockCloud, node: str = "n0", zone: str = "us-central1-a") -> dict[str, object]:
    wanted = {
        "name": f"sc-{node}",
        "zone": zone,
        "machine_type": "a2-highgpu-1g",
        "labels": {"sailor-cloud-run": "r", "sailor-cloud-node": node},
        "metadata": {"ssh-keys": f"sailor:{PUBLIC}"},
        "scheduling": [{"termination_time": expiry().isoformat()}],
        "network_interface": [{"access_config": [{}]}],
    }
    return mocked.cloud.create("google_compute_instance", wanted, {"project": mocked.project})


def aws_instance(mocked: MockCloud, node: str = "n0") -> dict[str, object]:
    config = {"region": "us-east-1"}
    subnet = mocked.cloud.create("aws_subnet", {"availability_zone_id": "use1-az4"}, config)
    wanted = {
        "subnet_id": subnet["id"],
        "instance_type": "p4d.24xlarge",
        "associate_public_ip_address": True,
        "tags": {"sailor-cloud-run": "r", "sailor-cloud-node": node},
        "user_data": f"OnCalendar={expiry():%Y-%m-%d %H:%M:%S} UTC\necho '{PUBLIC}' > keys",
    }
    return mocked.cloud.create("aws_instance", wanted, config)


def output_of(address: object, host_key: object, command: str) -> str:
    async def ask() -> str:
        known = asyncssh.import_known_hosts(f"[{address}]:{PORT} {host_key}\n")
        async with asyncssh.connect(
            str(address), PORT, username="sailor", client_keys=[KEY], known_hosts=known, config=None
        ) as connection:
            return str((await connection.run(command, check=True)).stdout)

    return asyncio.run(ask())


def test_an_instance_on_gcp_answers_ssh_with_ranks_on_the_processor(mock_gcp: MockCloud) -> None:
    made = gcp_instance(mock_gcp)
    address = made["network_interface"][0]["access_config"][0]["nat_ip"]  # type: ignore[index]
    program = "import os; print(os.getcwd(), os.environ['SAILOR_CLOUD_ACCELERATORS'])"
    where, accelerators = output_of(address, made["host_public_key"], f'python3 -c "{program}"').split()
    assert Path(where) == mock_gcp.folder_of("n0")
    assert accelerators == "cpu"
    assert mock_gcp.billed() == {"n0": made["id"]}


def test_an_instance_on_aws_answers_ssh_and_ends_when_it_is_preempted(mock_aws: MockCloud) -> None:
    made = aws_instance(mock_aws)
    folder = mock_aws.folder_of("n0")
    assert output_of(made["public_ip"], made["host_public_key"], "pwd").strip() == str(folder)
    mock_aws.preempt("n0")
    assert mock_aws.billed() == {}
    assert not folder.exists()
    assert mock_aws.cloud.history[-1] == ("preempted", "aws_instance", made["id"])


def test_a_machine_that_ends_itself_is_no_longer_billed(mock_gcp: MockCloud) -> None:
    gcp_instance(mock_gcp)
    info = VmInfo.read(mock_gcp.folder_of("n0"))
    assert info is not None
    machine = processes.read(info.pid)
    assert machine is not None
    processes.end(lambda: processes.of_run(machine.run_id), grace_s=0.0)
    assert mock_gcp.billed() == {}
    assert mock_gcp.cloud.history[-1][0] == "ended"


def test_a_machine_that_is_powered_off_from_inside_is_no_longer_billed(mock_aws: MockCloud) -> None:
    made = aws_instance(mock_aws)
    program = "import os, subprocess; subprocess.Popen(['sh', '-c', os.environ['SAILOR_CLOUD_POWER_OFF']])"
    output_of(made["public_ip"], made["host_public_key"], f'python3 -c "{program}"')
    wait_until(lambda: mock_aws.billed() == {}, "the machine to end")
    assert mock_aws.cloud.history[-1][0] == "ended"


def test_the_metadata_server_announces_a_node_s_preemption(mock_aws: MockCloud) -> None:
    made = aws_instance(mock_aws)
    program = "import os; print(os.environ['SAILOR_CLOUD_METADATA'])"
    address = output_of(made["public_ip"], made["host_public_key"], f'python3 -c "{program}"').strip()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{address}/latest/meta-data/spot/instance-action")
    mock_aws.announce_preemption("n0")
    with urllib.request.urlopen(f"{address}/latest/meta-data/spot/instance-action") as answer:
        assert b"terminate" in answer.read()


def test_failures_have_the_providers_messages_and_can_be_cancelled(mock_gcp: MockCloud) -> None:
    mock_gcp.run_out("us-central1-a")
    with pytest.raises(CloudError, match="does not have enough resources available"):
        gcp_instance(mock_gcp)
    gcp_instance(mock_gcp, node="n1", zone="us-central1-b")
    mock_gcp.recover()
    gcp_instance(mock_gcp)
    assert sorted(mock_gcp.billed()) == ["n0", "n1"]


def test_the_environment_leads_to_the_mock_and_only_while_it_runs(mock_gcp: MockCloud) -> None:
    assert {name: os.environ[name] for name in mock_gcp.environment} == mock_gcp.environment
