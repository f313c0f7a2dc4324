"""What a dry run tells, against what Terraform creates."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, aws_document, cloud_document, gcp_document
from factories.documents import document
from factories.local_runs import LocalRun, local_run, terraform_of_kind
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.preview import PlannedRoot, preview
from sailor_cloud.provision.progress import Interrupt
from sailor_cloud.provision.render import environment, write_cli_config, write_root
from sailor_cloud.provision.terraform_driver import TerraformDriver
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.testing.terraform_cloud import FakeCloud
from sailor_cloud.testing.terraform_provider import serve

FOLDER = RunFolder(run_id="tiny-20261121-051313-a1b2", path=Path("/runs/tiny-20261121-051313-a1b2"))
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVzZWQgb25seSBieSBhIHRlc3QgcGxhbg=="
EXPIRES_AT = datetime(2026, 11, 21, 6, 0, 30, tzinfo=UTC)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def previewed(planned: PlanDocument, *, ssh_from: str | None = "203.0.113.7/32") -> tuple[PlannedRoot, ...]:
    return preview(planned, FOLDER, public_key=KEY, expires_at=EXPIRES_AT, ssh_from=ssh_from)


@pytest.mark.parametrize("provider", [Provider.GCP, Provider.AWS])
def test_a_preview_lists_exactly_what_terraform_creates(run: LocalRun, provider: Provider) -> None:
    planned = gcp_document() if provider is Provider.GCP else aws_document()
    roots = previewed(planned)
    cloud = FakeCloud()
    (run.folder.logs_dir / "terraform").mkdir()
    write_cli_config(run.folder)
    with serve(cloud) as attached:
        for root in roots:
            driver = TerraformDriver(
                write_root(run.folder, root.provider, root.region, root.variables).path,
                binary=terraform_of_kind("path"),
                environment={**environment(run.folder), **attached},
                log_dir=run.folder.logs_dir / "terraform",
                interrupt=Interrupt(),
            )
            driver.init()
            driver.plan()
            driver.apply()
    told = [resource for root in roots for resource in root.resources]
    assert Counter(resource.type for resource in told) == Counter(kind for kind, _ in cloud.resources)
    billed = [resource for resource in told if resource.usd_per_hour is not None]
    assert len(billed) == len(cloud.billed())
    if provider is Provider.GCP:
        created = {(kind, state["name"]) for (kind, _), state in cloud.resources.items()}
        assert {(resource.type, resource.name) for resource in told} == created


def test_local_nodes_are_previewed_without_any_cloud_settings() -> None:
    (root,) = previewed(document(), ssh_from=None)
    assert [(resource.name, resource.usd_per_hour) for resource in root.resources] == [("n0", 0.2), ("n1", 0.1)]
    assert not FOLDER.path.exists()


def test_what_a_cloud_needs_is_asked_for() -> None:
    with pytest.raises(RequestError, match="--ssh-from: is missing"):
        previewed(gcp_document(), ssh_from=None)


def test_two_clouds_of_64_nodes_are_previewed_at_once() -> None:
    offers = (*GCP_OFFERS, *AWS_OFFERS)
    planned = cloud_document(*((f"n{index}", offers[index % len(offers)]) for index in range(64)))
    begun = time.monotonic()
    roots = previewed(planned)
    assert time.monotonic() - begun < 5.0
    priced = [resource for root in roots for resource in root.resources if resource.usd_per_hour is not None]
    assert len(priced) == 64
    assert [root.provider for root in roots] == [Provider.AWS, Provider.GCP, Provider.GCP]


def test_prices_are_those_of_the_offers() -> None:
    dear = replace(GCP_OFFERS[2], usd_per_hour=9.5)
    (root,) = previewed(cloud_document(("n0", dear)))
    assert [resource.usd_per_hour for resource in root.resources if resource.usd_per_hour] == [9.5]
