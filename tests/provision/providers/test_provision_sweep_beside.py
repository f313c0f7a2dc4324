"""The look by tag at what is no part of compute: buckets with what is in them, identities, watchdogs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from factories.cloud_runs import CLOCK, PROJECT, waited
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup.reap import find_leftovers, remove_foreign
from sailor_cloud.provision.providers.gcp.data_sweep import sweep_gcp_data
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER, remove_gcp_members, sweep_gcp_members
from sailor_cloud.provision.scopes import remove_from, scopes_named, sweep_scopes
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, serving
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.object_store import ObjectStore, serve_objects
from sailor_cloud.testing.terraform.cloud import FakeCloud

OURS, OTHERS = "tiny-20261121-051313-a1b2", "else-20261121-051313-ffff"
EXPIRED = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%dt%H-%M-%Sz}"
SCOPES = {Provider("gcp"): scopes_named("project", [PROJECT]), Provider("aws"): scopes_named("region", ["us-east-1"])}
BUCKET = {Provider("gcp"): "google_storage_bucket", Provider("aws"): "aws_s3_bucket"}
CLOUDS = pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")], ids=str)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    made = ObjectStore()
    with serve_objects(made) as url, in_environment({"AWS_ENDPOINT_URL_S3": url}):
        yield made


def build(cloud: FakeCloud, provider: Provider, run_id: str, *, name: str = "") -> set[tuple[str, str]]:
    """Make what a run has besides compute; `name` replaces the run's own, and `run_id` may be nobody's."""
    before = set(cloud.resources)
    tags = {"sailor-cloud-run": run_id, "sailor-cloud-owner": "me", "sailor-cloud-expires": EXPIRED} if run_id else {}
    data, node, watchdog = (resource_name(name or run_id, part) for part in ("data", "node", "watchdog"))
    if provider is Provider("gcp"):
        config = {"project": PROJECT}
        told = " ".join(f"{key}={value}" for key, value in tags.items())
        cloud.create("google_storage_bucket", {"name": data, "labels": tags, "location": "us-central1"}, config)
        for account in (node, watchdog):
            cloud.create("google_service_account", {"account_id": account, "description": told}, config)
        place = {"location": "us-central1", "region": "us-central1", "name": watchdog}
        cloud.create("google_cloudfunctions2_function", {**place, "labels": tags}, config)
        cloud.create("google_cloud_scheduler_job", place, config)
        cloud.create("google_project_iam_custom_role", {"role_id": watchdog.replace("-", "_")}, config)
        code = {"bucket": watchdog, "name": "watchdog.zip"}
        cloud.create("google_storage_bucket", {"name": watchdog, "labels": tags, "location": "us-central1"}, config)
        cloud.create("google_storage_bucket_object", code, config)
    else:
        config = {"region": "us-east-1"}
        cloud.create("aws_s3_bucket", {"bucket": data, "tags": tags}, config)
        for role in (node, watchdog):
            cloud.create("aws_iam_role", {"name": role, "tags": tags}, config)
            cloud.create("aws_iam_role_policy", {"name": role, "role": role}, config)
        cloud.create("aws_iam_instance_profile", {"name": node, "role": node, "tags": tags}, config)
        cloud.create("aws_scheduler_schedule_group", {"name": watchdog, "tags": tags}, config)
        cloud.create("aws_scheduler_schedule", {"name": watchdog, "group_name": watchdog}, config)
        cloud.create("aws_lambda_function", {"function_name": watchdog, "tags": tags}, config)
        cloud.create("aws_cloudwatch_log_group", {"name": f"/aws/lambda/{watchdog}"}, config)
    return set(cloud.resources) - before


def served(cloud: FakeCloud, provider: Provider, store: ObjectStore):  # type: ignore[no-untyped-def]
    return serve_compute(cloud, store=store) if provider is Provider("gcp") else serve_ec2(cloud, store=store)


@CLOUDS
def test_everything_of_a_run_goes_and_nothing_of_others(provider: Provider, store: ObjectStore) -> None:
    cloud = FakeCloud()
    mine, theirs = build(cloud, provider, OURS), build(cloud, provider, OTHERS)
    # Called like a run's, and nobody's.
    nobodys = build(cloud, provider, "", name="nobody-20261121-051313-0000")
    store.objects |= {(resource_name(run, "data"), f"checkpoints/{n}"): b"x" for run in (OURS, OTHERS) for n in "ab"}
    with served(cloud, provider, store) as variables, in_environment(variables):
        found = sweep_scopes(SCOPES[provider], run_id=OURS)
        assert found.problems == ()
        assert {resource.run_id for resource in found.found} == {OURS}
        assert remove_from(found.found) == ()
        assert sweep_scopes(SCOPES[provider], run_id=OURS).found == ()
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
        found = find_leftovers([], clock=CLOCK, scopes=SCOPES[provider])
        (left,) = found.reapable
        assert (BUCKET[provider], bucket) not in {(resource.type, resource.name) for resource in left.resources}
        (kept,) = found.live
        assert bucket in kept.why
        assert remove_foreign(left, pause=waited()) == ()
        assert set(cloud.resources) == {(BUCKET[provider], bucket)}

        store.objects.clear()
        (empty,) = find_leftovers([], clock=CLOCK, scopes=SCOPES[provider]).reapable
        assert remove_foreign(empty, pause=waited()) == ()
    assert cloud.resources == {}


def test_only_the_right_that_a_run_added_is_taken_from_a_bucket_of_the_users(store: ObjectStore) -> None:
    """Also when its account is gone already, which the bucket remembers under another name."""
    cloud = FakeCloud()
    scopes = SCOPES[Provider("gcp")] | scopes_named("bucket", ["theirs", "gone"])
    accounts = [f"serviceAccount:{resource_name(run, 'node')}@{PROJECT}.iam" for run in (OURS, OTHERS)]
    for member in (*accounts, "user:me@example.org"):
        for role in ("roles/storage.objectUser", "roles/storage.admin"):
            cloud.create(MEMBER, {"bucket": "theirs", "role": role, "member": member}, {"project": PROJECT})
    before = set(cloud.resources)
    with serve_compute(cloud, store=store) as variables, in_environment(variables):
        swept = sweep_scopes(scopes, run_id=OURS)
        assert [(found.name, found.detail) for found in swept.found] == [(accounts[0], "theirs")]
        assert swept.problems == ()
        assert remove_from(swept.found) == ()
        assert sweep_scopes(scopes, run_id=OURS).found == ()
    assert before - set(cloud.resources) == {(MEMBER, f"b/theirs/roles/storage.objectUser/{accounts[0]}")}


def test_reaping_finds_the_right_of_a_run_that_has_left_nothing_else(tmp_path: Path, store: ObjectStore) -> None:
    folder = RunFolder.create(OURS, root=tmp_path)
    journal = Journal.of(folder, CLOCK)
    journal.append(Event.PROVISION_STARTED, gcp_projects=[PROJECT], aws_regions=[], gcp_buckets=["theirs"])
    cloud = FakeCloud()
    member = f"serviceAccount:{resource_name(OURS, 'node')}@{PROJECT}.iam"
    right = {"bucket": "theirs", "role": "roles/storage.objectUser", "member": member}
    cloud.create(MEMBER, right, {"project": PROJECT})
    with serve_compute(cloud, store=store) as variables, in_environment(variables):
        (left,) = find_leftovers([folder], clock=CLOCK).reapable
        assert [(found.type, found.name) for found in left.resources] == [(MEMBER, member)]
        journal.append(Event.TORN_DOWN)
        assert find_leftovers([folder], clock=CLOCK).reapable == (), "a run that is gone is not asked about for ever"


def test_a_right_is_removed_also_when_somebody_changes_the_bucket_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    member = f"serviceAccount:{resource_name(OURS, 'node')}@p"
    bucket = _Contested(member)
    monkeypatch.setattr("sailor_cloud.provision.providers.gcp.member_sweep.google_api", lambda *where: bucket)
    (found,) = sweep_gcp_members("p", ["theirs"], run_id=OURS).found
    assert remove_gcp_members("p", [found]) == ()
    assert bucket.members == ["user:first", "user:second"]


class _Contested:
    """A bucket to which another member is added between the first look and the first change."""

    def __init__(self, member: str) -> None:
        self.members = ["user:first", member]

    def request(self, method: str, path: str, **parameters: str) -> Any:
        return {"etag": "1", "bindings": [{"role": "roles/storage.objectUser", "members": [*self.members]}]}

    def put(self, path: str, content: Any) -> Any:
        if "user:second" not in self.members:
            self.members.append("user:second")
            answer = requests.Response()
            answer.status_code = 412
            answer.raise_for_status()
        self.members = content["bindings"][0]["members"]
        return {}


@CLOUDS
def test_kinds_that_the_caller_may_not_list_are_problems_and_prove_nothing(provider: Provider) -> None:
    cloud = FakeCloud()
    build(cloud, provider, OURS)
    with served(cloud, provider, ObjectStore()) as variables, in_environment(variables):
        nowhere = {name: "http://127.0.0.1:9" for name in variables if name.endswith(("_STORAGE", "_S3"))}
        with in_environment({**nowhere, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}):
            swept = sweep_scopes(SCOPES[provider], run_id=OURS)
        assert [problem.partition(" ")[0] for problem in swept.problems] == [BUCKET[provider]]
        assert sweep_scopes(SCOPES[provider], run_id=OURS, other_kinds=()).problems == ()


@pytest.mark.parametrize(
    "answers",
    [[b""], [b'{"items": ['], [b"<html></html>"], [b'{"nextPageToken": "more"}', b'{"nextPageToken": "more"}']],
    ids=["empty", "cut off", "of a proxy", "without an end"],
)
def test_an_answer_that_is_no_list_proves_nothing(answers: list[bytes]) -> None:
    left = [*answers, *[answers[-1]] * 9]
    with (
        serving(lambda ask: Answer(status=200, body=left.pop(0))) as url,
        in_environment({"CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": url}),
    ):
        swept = sweep_gcp_data(PROJECT, run_id=OURS, kinds=[BUCKET[Provider("gcp")]])
    assert [kind for kind, _ in swept.failed] == [BUCKET[Provider("gcp")]]
