"""The look at Google Cloud by label: the real client library against what a real Terraform core created."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from factories.cloud_plans import gcp_document, with_job
from factories.local_runs import LocalRun, expiry, local_run, terraform_of_kind
from sailor_cloud.errors import CredentialsError
from sailor_cloud.provision.access.nodes import ensure_ssh_key
from sailor_cloud.provision.progress import Interrupt
from sailor_cloud.provision.providers.gcp.sweep import remove_gcp, sweep_gcp
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import environment, write_cli_config, write_root
from sailor_cloud.provision.terraform.driver import TerraformDriver
from sailor_cloud.testing.google.compute_api import serve_compute
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


def test_refused_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_compute(FakeCloud(), refused=True) as variables:
        use(monkeypatch, variables)
        with pytest.raises(CredentialsError, match="refused to list resources of my-project"):
            sweep_gcp(PROJECT)
