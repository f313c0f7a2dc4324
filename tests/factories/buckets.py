"""Buckets of a test, on this machine: moto's S3 server, and a stand-in for what Google Cloud Storage answers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.testing.moto_server import moto_server
from sailor_cloud.testing.object_store import ObjectStore, google_environment, serve_objects

__all__ = ["BUCKET", "GoogleBucket", "google_bucket", "google_environment", "s3_bucket", "s3_environment"]

BUCKET = "run-bucket"


@contextlib.contextmanager
def s3_bucket() -> Iterator[dict[str, str]]:
    """Serve an empty bucket; give the environment in which s3:// reaches it."""
    import boto3

    with moto_server() as address:
        environ = s3_environment(address)
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        client = boto3.client("s3", endpoint_url=environ["AWS_ENDPOINT_URL"], region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        yield environ


def s3_environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


@dataclass(slots=True)
class GoogleBucket:
    """An empty bucket that is served; `down`: requests are cut off without an answer."""

    store: ObjectStore
    environ: dict[str, str]

    @property
    def objects(self) -> dict[str, bytes]:
        return self.store.of(BUCKET)

    @property
    def down(self) -> bool:
        return self.store.down

    @down.setter
    def down(self, down: bool) -> None:
        self.store.down = down


@contextlib.contextmanager
def google_bucket(folder: Path) -> Iterator[GoogleBucket]:
    """Serve an empty bucket; its `environ` is the environment in which gs:// reaches it."""
    store = ObjectStore()
    with serve_objects(store) as endpoint:
        yield GoogleBucket(store, google_environment(endpoint, folder))
