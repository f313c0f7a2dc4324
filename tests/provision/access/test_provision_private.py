"""Nodes without public addresses: reached through their cloud's own tunnel, and never bought where nobody could."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document, with_job
from factories.cloud_runs import waited
from factories.local_runs import CLOCK, LocalRun, expiry, local_run
from sailor_cloud import catalog
from sailor_cloud.catalog import Service
from sailor_cloud.cli.runs.ssh import ssh
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.launch.fleet.ssh import NodeConnection, connect
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import GcpAccount, NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.host_keys import FILE, first_contact, known_host_keys
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.access.nodes import ReachableNode, reachable_nodes
from sailor_cloud.provision.cleanup.teardown import destroy
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.provisioner import apply, check_supported
from sailor_cloud.provision.scopes import scopes_of
from sailor_cloud.provision.terraform.progress import Progress
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.testing.mock_cloud import PROJECT, MockCloud, in_environment, mock_cloud
from sailor_cloud.units import HOURS_PER_MONTH

pytestmark = pytest.mark.xdist_group("private")
CLOUDS = pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateRun:
    """A run of one node that was applied, on a cloud whose machines answer SSH; `prices` were told beforehand."""

    run: LocalRun
    document: PlanDocument
    mocked: MockCloud
    node: ReachableNode
    prices: dict[str, float]


def private(provider: Provider) -> PlanDocument:
    offer = GCP_OFFERS[1] if provider is Provider("gcp") else AWS_OFFERS[1]
    gcp = GcpAccount(project=PROJECT)
    return with_job(cloud_document(("n0", offer)), network=NetworkAccess.PRIVATE, to="/data", gcp=gcp)


@pytest.fixture(scope="module", params=[Provider("gcp"), Provider("aws")], ids=str)
def bought(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateRun]:
    root, document = tmp_path_factory.mktemp("private"), private(request.param)
    with (
        mock_cloud(request.param, root / "cloud") as mocked,
        in_environment(mocked.environment),
        local_run(root / "runs") as run,
    ):
        run.folder.write_document(document)
        Journal.of(run.folder, CLOCK).append(Event.RUN_CREATED, job="tiny")
        seen: list[Progress] = []
        outcome = apply(run.folder, document, clock=CLOCK, expires_at=expiry(), pause=waited(), on_progress=seen.append)
        (node,) = applied_or_raise(outcome).nodes
        prices = {step.resource: step.usd_per_hour for step in seen if step.usd_per_hour is not None}
        yield PrivateRun(run=run, document=document, mocked=mocked, node=node, prices=prices)
        destroyed = destroy(run.folder, clock=CLOCK, pause=waited())
        assert destroyed.clean, (destroyed.remaining, destroyed.problems)
        assert mocked.left_of(run.run_id) == ()


def test_a_private_node_has_no_public_address_and_answers_through_the_tunnel(bought: PrivateRun) -> None:
    (instance,) = instances(scopes_of(bought.document), bought.run.run_id)
    assert instance.address == instance.private_address == bought.node.private_address
    before = bought.mocked.tunnels()

    async def ask() -> str:
        connection = await connect(bought.node, bought.run.folder.ssh_key_file)
        try:
            await connection.write("sent", b"through the tunnel")
            assert await connection.read_from("sent", 0) == b"through the tunnel"
            return await connection.run(["pwd"])
        finally:
            await connection.close()

    assert Path(asyncio.run(ask()).strip()) == bought.mocked.folder_of("n0")
    assert bought.mocked.tunnels() == (*before, "n0")


def test_resources_about_to_be_created_are_reported_with_prices_gateways_too(bought: PrivateRun) -> None:
    """The machine has a disk and no address; NAT has a gateway and an address, on AWS in a resource of its own."""
    offer, services = bought.document.inputs.offers[0], catalog.load_services()
    gateway, address, disk = (
        services.price(offer.provider, offer.region, service).usd_per_unit
        for service in (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS, Service.DISK_BALANCED)
    )
    machine = offer.usd_per_hour + disk * 100 / HOURS_PER_MONTH
    if offer.provider is Provider("gcp"):
        told = {"google_compute_instance": machine, "google_compute_router_nat": gateway + address}
    else:
        told = {"aws_instance": machine, "aws_nat_gateway": gateway, "aws_eip": address}
    assert bought.prices == pytest.approx(told)


def test_there_is_no_way_around_a_tunnel_that_does_not_open(bought: PrivateRun) -> None:
    tunnel = bought.node.tunnel
    assert tunnel is not None
    program = tuple("nobody" if part == instances_name(bought) else part for part in tunnel.program)
    lost = replace(bought.node, tunnel=replace(tunnel, program=program))
    with pytest.raises(UnreachableError, match=rf"{program[0]} said: ERROR: \({program[0]}\) no tunnel: .*nobody"):
        asyncio.run(NodeConnection(lost, bought.run.folder.ssh_key_file).open(2.0))


def instances_name(bought: PrivateRun) -> str:
    (instance,) = instances(scopes_of(bought.document), bought.run.run_id)
    return instance.machine


def test_a_host_key_that_the_cloud_does_not_publish_is_learned_through_the_tunnel(bought: PrivateRun) -> None:
    (instance,) = instances(scopes_of(bought.document), bought.run.run_id)
    file = bought.run.folder.path / FILE
    known = file.read_text()
    file.unlink()
    before = bought.mocked.tunnels()
    first_contact(bought.run.folder, instance, private=True)
    assert known_host_keys(bought.run.folder) == {instance.id: bought.node.host_public_key}
    assert file.read_text() == known
    assert bought.mocked.tunnels() == (*before, "n0")


@pytest.mark.skipif(shutil.which("ssh") is None, reason="the OpenSSH client is not installed")
def test_the_command_ssh_goes_through_the_tunnel(bought: PrivateRun) -> None:
    home = bought.run.folder.path.parent.parent
    with in_environment({"SAILOR_CLOUD_HOME": str(home)}):
        told = CliRunner().invoke(ssh, [bought.run.run_id, "n0", "--json"], catch_exceptions=False)
    command = json.loads(told.output)["command"]
    answered = subprocess.run([*command, "pwd"], capture_output=True, text=True, timeout=60, check=False)
    assert (answered.returncode, answered.stdout.strip()) == (0, str(bought.mocked.folder_of("n0"))), answered.stderr


def test_the_log_of_a_tunnel_is_the_runs_and_its_users_alone(bought: PrivateRun) -> None:
    (again,) = reachable_nodes(bought.run.folder, bought.document)
    assert again == bought.node
    assert again.tunnel is not None
    assert again.tunnel.log.parent == bought.run.folder.logs_dir
    asyncio.run(_open_and_close(again, bought.run.folder.ssh_key_file))
    assert again.tunnel.log.stat().st_mode & 0o777 == 0o600


async def _open_and_close(node: ReachableNode, key: Path) -> None:
    connection = await connect(node, key)
    await connection.close()


def test_the_programs_are_those_that_the_clouds_document(bought: PrivateRun) -> None:
    """cloud.google.com/sdk/gcloud/reference/compute/start-iap-tunnel; AWS: see provision/access/tunnel.py."""
    assert bought.node.tunnel is not None
    machine, port = instances_name(bought), str(bought.node.port)
    if bought.node.provider is Provider("gcp"):
        place = (f"--project={PROJECT}", "--zone=us-central1-b", "--verbosity=warning")
        wanted = ("gcloud", "compute", "start-iap-tunnel", machine, port, "--listen-on-stdin", *place)
    else:
        target = ("--target", machine, "--region", "us-east-1")
        document = ("--document-name", "AWS-StartSSHSession", "--parameters", f"portNumber={port}")
        wanted = ("aws", "ssm", "start-session", *target, *document)
    assert bought.node.tunnel.program == wanted


@CLOUDS
def test_without_the_program_on_path_nothing_is_bought(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    names = {Provider("gcp"): ["gcloud"], Provider("aws"): ["aws", "session-manager-plugin"]}[provider]
    with pytest.raises(RequestError) as refused:
        check_supported(private(provider))
    message = str(refused.value)
    assert all(
        f"nodes on {provider} are then reached through {name}, which is not on PATH" in message for name in names
    )
    assert "install it (https://" in message
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o700)
    check_supported(private(provider))
