"""Terraform's states in a bucket: where they lie, and that two commands can't change one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import efa_document, with_job
from factories.cloud_stacks import drivers_of, previewed
from factories.local_runs import LocalRun, local_run
from sailor_cloud.model.job import StateBackend
from sailor_cloud.provision.rendering.root import BACKEND_FILE
from sailor_cloud.provision.terraform.driver import TerraformCommandError
from sailor_cloud.testing.moto_server import moto_server
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve

ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


@pytest.fixture
def bucket() -> Iterator[tuple[Any, str]]:
    """A client of a moto server with a bucket named `states`, and the server's address."""
    import boto3

    with moto_server() as address:
        client = boto3.client("s3", endpoint_url=address, **ACCESS)
        client.create_bucket(Bucket="states")
        yield client, address


def reach_moto(root: Path) -> None:
    """Let the backend take moto for S3: buckets in paths, and no account to ask who is calling."""
    written = json.loads((root / BACKEND_FILE).read_text())
    backend = written["terraform"]["backend"]["s3"]
    backend |= {"use_path_style": True, "skip_credentials_validation": True, "skip_requesting_account_id": True}
    (root / BACKEND_FILE).write_text(json.dumps(written))


def test_a_state_lies_in_the_bucket_and_its_lock_beside_it(run: LocalRun, bucket: tuple[Any, str]) -> None:
    client, address = bucket
    state = StateBackend(bucket="s3://states", prefix="teams/a", region="us-east-1")
    roots = previewed(run, with_job(efa_document(), to="/data/checkpoints", state=state))
    cloud = FakeCloud()
    keys = {f"AWS_{name.removeprefix('aws_').upper()}": value for name, value in ACCESS.items()}
    with serve(cloud) as attached:
        environment = {**attached, **keys, "AWS_ENDPOINT_URL_S3": address, "AWS_EC2_METADATA_DISABLED": "true"}
        (driver,) = drivers_of(run, roots, environment, before_init=reach_moto)
        driver.plan()
        driver.apply()
        key = f"teams/a/{run.run_id}/aws-us-east-1.tfstate"
        assert [found["Key"] for found in client.list_objects_v2(Bucket="states")["Contents"]] == [key]
        assert not list(run.folder.path.rglob("terraform.tfstate.backup"))
        lock = {"ID": "6fd2b8a1-0000-4000-8000-000000000000", "Operation": "apply", "Who": "somebody else"}
        client.put_object(Bucket="states", Key=f"{key}.tflock", Body=json.dumps(lock))
        with pytest.raises(TerraformCommandError) as refused:
            driver.plan()
        assert refused.value.state_locked
        assert lock["ID"] in str(refused.value)
        driver.force_unlock(lock["ID"])
        driver.destroy()
        assert cloud.resources == {}
