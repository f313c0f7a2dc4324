"""The stacks for AWS under the real hashicorp/aws, where a local mirror has it, against a moto server.

Minutes long, so they run by `make test-providers` only; test_provision_cloud_real_aws.py takes the real provider
through one run in every `make test`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, cloud_document, two_regions_document, with_job
from factories.cloud_stacks import drivers_of, previewed
from factories.local_runs import LocalRun, local_run
from factories.provider_mirror import mirror
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import AwsAccount, NetworkAccess
from sailor_cloud.testing.moto_server import moto_gaps, moto_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("real-aws-provider"),
    pytest.mark.skipif("SAILOR_CLOUD_TEST_PROVIDERS" not in os.environ, reason="runs by 'make test-providers'"),
]
DATA = ("data.", "module.cluster.data.")
IMAGE_PARAMETER = "/images/newest"


@pytest.fixture(scope="module")
def cli_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = mirror("hashicorp", "aws")
    if found is None:
        pytest.skip("no local mirror of hashicorp/aws here; the stand-in was used instead")
    if shutil.which("terraform") is None:
        pytest.skip("no terraform on PATH")
    config = tmp_path_factory.mktemp("mirror") / "mirror.tfrc"
    config.write_text(f'provider_installation {{\n  filesystem_mirror {{ path = "{found}" }}\n}}\n')
    return config


@pytest.fixture(scope="module")
def moto_access() -> Iterator[dict[str, str]]:
    with moto_gaps(), moto_server() as address:
        yield {"endpoint_url": address, "aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def private_links() -> PlanDocument:
    """Two regions joined, NAT, a bucket of the run, and a watchdog: nearly every resource there is."""
    account = AwsAccount(watchdog=True)
    return with_job(two_regions_document(), network=NetworkAccess.PRIVATE, aws=account, image=IMAGE_PARAMETER)


def with_efa() -> PlanDocument:
    """Nodes of two types with EFA in one zone, one of which has several network cards."""
    other = replace(AWS_OFFERS[0], id="p3dn", instance_type="p3dn.24xlarge")
    document = cloud_document(("n0", AWS_OFFERS[0]), ("n1", other), image=IMAGE_PARAMETER)
    return with_job(document, to="s3://somebodys-bucket/runs")


@pytest.mark.parametrize("document", [private_links, with_efa], ids=lambda made: made.__name__)
def test_the_real_provider_creates_and_destroys_the_stacks_in_moto(
    run: LocalRun, cli_config: Path, moto_access: dict[str, str], document: Any
) -> None:
    import boto3

    planned = document()
    for region in sorted({offer.region for offer in planned.inputs.offers}):
        ec2 = boto3.client("ec2", region_name=region, **moto_access)
        image = ec2.register_image(Name="test", RootDeviceName="/dev/sda1", Architecture="x86_64")["ImageId"]
        parameters = boto3.client("ssm", region_name=region, **moto_access)
        parameters.put_parameter(Name=IMAGE_PARAMETER, Value=image, Type="String", Overwrite=True)
    private = planned.job.cloud.network is NetworkAccess.PRIVATE
    roots = previewed(run, planned, ssh_from=None if private else "203.0.113.7/32")
    drivers = drivers_of(run, roots, environment_of(cli_config, moto_access), before_init=paths_for_buckets)
    for driver in drivers:
        driver.plan()
        driver.apply()
    nodes = {name: node for driver in drivers for name, node in driver.output().get("nodes", {}).items()}
    assert sorted(nodes) == ["n0", "n1"]
    # Data sources stand in a state beside what was created.
    created = [len([line for line in driver.state_list() if not line.startswith(DATA)]) for driver in drivers]
    assert created == [len(root.resources) for root in roots]
    for driver in reversed(drivers):
        driver.destroy()
        assert driver.state_list() == ()


def environment_of(cli_config: Path, access: dict[str, str]) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": access["endpoint_url"],
        "AWS_ACCESS_KEY_ID": access["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": access["aws_secret_access_key"],
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "2",
        "TF_CLI_CONFIG_FILE": str(cli_config),
        # moto answers one call at a time in effect; many at once make the SDK repeat calls that were heard.
        "TF_CLI_ARGS_apply": "-parallelism=2",
    }


def paths_for_buckets(root: Path) -> None:
    """Let the provider name buckets in paths, because a loopback address has no subdomains."""
    (root / "paths_override.tf.json").write_text('{"provider": {"aws": {"s3_use_path_style": true}}}')
