"""The look at Google Cloud by label: the real client library against what a real Terraform core created."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from google.api_core.exceptions import Forbidden

from factories.cloud_plans import gcp_document, with_job
from factories.local_runs import LocalRun, expiry, local_run, terraform_of_kind
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.provision.access.instances import instances
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.providers.gcp.data_sweep import sweep_gcp_data
from sailor_cloud.provision.providers.gcp.sweep import google_client, remove_gcp, sweep_gcp
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import environment, write_cli_config, write_root
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.provision.terraform.driver import TerraformDriver
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.terraform.cloud import FakeCloud
from sailor_cloud.testing.terraform.provider import serve

PROJECT = "my-project"


def use(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def created(run: LocalRun, cloud: FakeCloud) -> None:
    """Create the plan's nodes with Terraform; what follows does not use its states."""
    write_cli_config(run.folder)
    logs = run.folder.logs_dir / "terraform"
    logs.mkdir()
    roots = rendered_roots(
        with_job(gcp_document(), to="/data/checkpoints"),
        run.folder,
        public_key=ensure_ssh_key(run.folder),
        expires_at=expiry(),
        ssh_from="203.0.113.7/32",
    )
    with serve(cloud, "google") as attached:
        for root in roots:
            driver = TerraformDriver(
                write_root(run.folder, root.provider, root.region, root.variables, stack=root.stack).path,
                binary=terraform_of_kind("path"),
                environment={**environment(run.folder), **attached},
                log_dir=logs,
                interrupt=Interrupt(),
            )
            driver.init()
            driver.plan()
            driver.apply()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path / "one") as made:
        yield made


@pytest.fixture
def other(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path / "two") as made:
        yield made


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCloud]:
    made = FakeCloud()
    for kind in ("google_compute_network", "google_compute_instance", "google_compute_firewall"):
        foreign = {"name": "sc-looks-like-ours", "description": "sailor's own", "labels": {"team": "else"}}
        made.create(kind, foreign, {"project": PROJECT})
    with serve_compute(made) as variables:
        use(monkeypatch, variables)
        yield made


def test_everything_of_a_run_is_found_and_deleted_and_nothing_else(
    run: LocalRun, other: LocalRun, cloud: FakeCloud
) -> None:
    foreign = set(cloud.resources)
    created(other, cloud)
    others = set(cloud.resources)
    created(run, cloud)
    found = sweep_gcp(PROJECT, run_id=run.run_id)
    assert found.problems == ()
    assert Counter(resource.type for resource in found.found) == Counter(
        kind for kind, _ in set(cloud.resources) - others
    )
    instances = {resource.node: resource for resource in found.found if resource.type == "google_compute_instance"}
    assert sorted(instances) == ["n0", "n1", "n2", "n3"]
    assert (instances["n2"].zone, instances["n2"].detail) == ("us-central1-b", "n1-standard-8")
    assert {resource.run_id for resource in sweep_gcp(PROJECT).found} == {run.run_id, other.run_id}

    assert remove_gcp(PROJECT, found.found, poll_s=0.01) == ()
    assert set(cloud.resources) == others
    assert sweep_gcp(PROJECT, run_id=run.run_id).found == ()
    assert remove_gcp(PROJECT, found.found, poll_s=0.01) == ()
    assert remove_gcp(PROJECT, sweep_gcp(PROJECT).found, poll_s=0.01) == ()
    assert set(cloud.resources) == foreign


def test_one_that_can_not_be_deleted_does_not_keep_the_rest(run: LocalRun, cloud: FakeCloud) -> None:
    created(run, cloud)
    found = sweep_gcp(PROJECT, run_id=run.run_id).found
    kept = [resource for resource in found if resource.type != "google_compute_instance"]
    problems = remove_gcp(PROJECT, kept, poll_s=0.01)
    assert sorted(problem.split()[0] for problem in problems) == [
        "google_compute_network",
        "google_compute_subnetwork",
        "google_compute_subnetwork",
    ]
    assert not cloud.of_type("google_compute_resource_policy")


def test_a_zone_that_can_not_be_asked_is_a_problem_and_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_compute(FakeCloud(), unreachable="zones/us-central1-a") as variables:
        use(monkeypatch, variables)
        swept = sweep_gcp(PROJECT)
    assert swept.found == ()
    assert "zones/us-central1-a can't be reached" in swept.problems[0]


def test_refused_credentials_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_compute(FakeCloud(), refused=True) as variables:
        use(monkeypatch, variables)
        with pytest.raises(CredentialsError, match="refused to list resources of my-project"):
            sweep_gcp(PROJECT)


ZONE = "zones/us-central1-a"
ODD = {
    "a zone is out of reach": {"items": {}, "unreachables": [ZONE]},
    "some is missing": {"items": {}, "warning": {"code": "PARTIAL_SUCCESS", "message": "try again"}},
    "a zone lists not all": {"items": {ZONE: {"warning": {"code": "LIST_OVERHEAD_QUOTA_EXCEED", "message": "m"}}}},
    "no page is the last": {"items": {}, "nextPageToken": "more"},
    "half an answer": None,
}


@pytest.mark.parametrize("told", ODD.values(), ids=list(ODD))
def test_a_list_that_may_lack_something_proves_nothing(
    told: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"items": {"zones/' if told is None else json.dumps(told).encode()
    with serving(lambda ask: Answer(status=200, body=body)) as url:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", url)
        failed = {kind for kind, _ in sweep_gcp(PROJECT, run_id="r").failed}
        assert {"google_compute_instance", "google_compute_disk", "google_compute_router"} <= failed
        with pytest.raises(ProvisionError, match=r"which nodes of run r exist|can't be listed"):
            instances(scopes_named("project", [PROJECT]), "r")


def test_a_zone_in_which_there_is_nothing_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}

    def answer(ask: Ask) -> Answer:
        more = "" if "aggregated" not in ask.path or "pageToken=second" in ask.path else "second"
        items = {"items": {ZONE: nothing}} if "aggregated" in ask.path else nothing
        return Answer(status=200, body=json.dumps({**items, "nextPageToken": more}).encode())

    with serving(answer) as url:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", url)
        assert sweep_gcp(PROJECT).failed == ()
        assert instances(scopes_named("project", [PROJECT]), "r") == ()


@pytest.mark.parametrize(("status", "reason"), [(429, "tooMany"), (403, "rateLimitExceeded"), (502, "badGateway")])
def test_a_cloud_that_is_busy_is_asked_again(status: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = json.dumps({"error": {"code": status, "message": "m", "errors": [{"reason": reason}]}}).encode()
    asked: Counter[str] = Counter()
    monkeypatch.setattr("google.api_core.retry.retry_unary.time.sleep", lambda seconds: None)
    monkeypatch.setattr("urllib3.util.retry.time.sleep", lambda seconds: None)

    def answer(ask: Ask) -> Answer:
        place = ask.path.partition("?")[0]
        asked[place] += 1
        if asked[place] < 3:
            return Answer(status=status, body=busy)
        return Answer(status=200, body=b"{}")

    with serving(answer) as url:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", url)
        assert sweep_gcp(PROJECT).failed == ()
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE", url)
        data = sweep_gcp_data(PROJECT, kinds=["google_storage_bucket"])
    assert asked == {place: 1 if status == 403 and "storage" in place else 3 for place in asked}
    assert bool(data.failed) == (status == 403)


def test_a_caller_who_may_not_list_routers_still_finds_the_nodes(run: LocalRun, cloud: FakeCloud) -> None:
    created(run, cloud)

    class Refusing:
        def aggregated_list(self, **_: object) -> object:
            raise Forbidden("compute.routers.list is missing")  # type: ignore[no-untyped-call]

    swept = sweep_gcp(
        PROJECT,
        run_id=run.run_id,
        client_of=lambda name: Refusing() if name == "RoutersClient" else google_client(name),
    )
    assert sorted(found.node for found in swept.found if found.type == "google_compute_instance") == [
        "n0",
        "n1",
        "n2",
        "n3",
    ]
    ((kind, why),) = swept.failed
    assert kind == "google_compute_router"
    assert "compute.routers.list is missing" in why
