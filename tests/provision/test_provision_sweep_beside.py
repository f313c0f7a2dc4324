"""The look by tag at what is no part of compute: buckets with what is in them, identities, schedules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from factories.cloud_runs import CLOCK, PROJECT, waited
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.places import Places, remove_from, sweep_places
from sailor_cloud.provision.reap import find_leftovers, remove_strangers
from sailor_cloud.run.folder import resource_name
from sailor_cloud.testing.ec2_api import serve_ec2
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.object_store import ObjectStore, serve_objects
from sailor_cloud.testing.terraform_cloud import FakeCloud
from sailor_cloud.testing.terraform_compute import serve_compute

OURS, OTHERS = "tiny-20261121-051313-a1b2", "else-20261121-051313-ffff"
EXPIRED = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%dt%H-%M-%Sz}"
PLACES = {Provider.GCP: Places(gcp_projects=(PROJECT,)), Provider.AWS: Places(aws_regions=("us-east-1",))}
BUCKET = {Provider.GCP: "google_storage_bucket", Provider.AWS: "aws_s3_bucket"}
CLOUDS = pytest.mark.parametrize("provider", [Provider.GCP, Provider.AWS], ids=lambda provider: provider.value)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    with serve_objects(made) as url, in_environment({"AWS_ENDPOINT_URL_S3": url}):
        yield made


def build(cloud: FakeCloud, provider: Provider, run_id: str, *, name: str = "") -> set[tuple[str, str]]:
    """Make what a run has besides compute; `name` replaces the run's own, and `run_id` may be nobody's."""
    before = set(cloud.resources)
    tags = {"sailor-cloud-run": run_id, "sailor-cloud-owner": "me", "sailor-cloud-expires": EXPIRED} if run_id else {}
    data, node = resource_name(name or run_id, "data"), resource_name(name or run_id, "node")
    if provider is Provider.GCP:
        config = {"project": PROJECT}
        told = " ".join(f"{key}={value}" for key, value in tags.items())
        cloud.create("google_storage_bucket", {"name": data, "labels": tags, "location": "us-central1"}, config)
        cloud.create("google_service_account", {"account_id": node, "description": told}, config)
    else:
        config = {"region": "us-east-1"}
        group = resource_name(name or run_id, "us-east-1")
        cloud.create("aws_s3_bucket", {"bucket": data, "tags": tags}, config)
        cloud.create("aws_iam_role", {"name": node, "tags": tags}, config)
        cloud.create("aws_iam_role_policy", {"name": node, "role": node}, config)
        cloud.create("aws_iam_instance_profile", {"name": node, "role": node, "tags": tags}, config)
        cloud.create("aws_scheduler_schedule_group", {"name": group, "tags": tags}, config)
        cloud.create("aws_scheduler_schedule", {"name": node, "group_name": group}, config)
    return set(cloud.resources) - before


def served(cloud: FakeCloud, provider: Provider, store: ObjectStore):  # type: ignore[no-untyped-def]
    return serve_compute(cloud, store=store) if provider is Provider.GCP else serve_ec2(cloud, store=store)


@CLOUDS
def test_everything_of_a_run_goes_and_nothing_of_others(provider: Provider, store: ObjectStore) -> None:
    cloud = FakeCloud()
    mine, theirs = build(cloud, provider, OURS), build(cloud, provider, OTHERS)
    # Called like a run's, and nobody's.
    nobodys = build(cloud, provider, "", name="nobody-20261121-051313-0000")
    store.objects |= {(resource_name(run, "data"), f"checkpoints/{n}"): b"x" for run in (OURS, OTHERS) for n in "ab"}
    with served(cloud, provider, store) as variables, in_environment(variables):
        found = sweep_places(PLACES[provider], run_id=OURS)
        assert found.problems == ()
        assert {resource.run_id for resource in found.found} == {OURS}
        assert remove_from(PLACES[provider], found.found) == ()
        assert sweep_places(PLACES[provider], run_id=OURS).found == ()
    assert not mine & cloud.resources.keys()
    assert theirs | nobodys == cloud.resources.keys()
    assert store.of(resource_name(OURS, "data")) == {}
    assert len(store.of(resource_name(OTHERS, "data"))) == 2


@CLOUDS
def test_reaping_leaves_a_bucket_that_somebody_may_want_and_says_how_to_delete_it(
    provider: Provider, store: ObjectStore, tmp_path: Path
) -> None:
    cloud = FakeCloud()
    build(cloud, provider, OTHERS)
    bucket = resource_name(OTHERS, "data")
    store.objects[bucket, "checkpoints/step-10"] = b"x"
    with served(cloud, provider, store) as variables, in_environment(variables):
        found = find_leftovers([], clock=CLOCK, places=PLACES[provider])
        (left,) = found.reapable
        assert BUCKET[provider] not in {resource.type for resource in left.resources}
        (kept,) = found.live
        assert bucket in kept.why
        assert remove_strangers(left, pause=waited()) == ()
        assert set(cloud.resources) == {(BUCKET[provider], bucket)}

        store.objects.clear()
        (empty,) = find_leftovers([], clock=CLOCK, places=PLACES[provider]).reapable
        assert remove_strangers(empty, pause=waited()) == ()
    assert cloud.resources == {}


@CLOUDS
def test_what_the_caller_may_not_list_is_a_problem_and_proves_nothing(provider: Provider) -> None:
    cloud = FakeCloud()
    build(cloud, provider, OURS)
    with served(cloud, provider, ObjectStore()) as variables, in_environment(variables):
        nowhere = {name: "http://127.0.0.1:9" for name in variables if name.endswith(("_STORAGE", "_S3"))}
        with in_environment({**nowhere, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}):
            swept = sweep_places(PLACES[provider], run_id=OURS)
        assert [problem.partition(" ")[0] for problem in swept.problems] == [BUCKET[provider]]
        assert sweep_places(PLACES[provider], run_id=OURS, beside=()).problems == ()
