"""The roots of a later plan of a run change nothing of what the earlier ones have made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.cloud_runs import SSH_FROM, without_bucket
from factories.local_runs import LocalRun, expiry, local_run
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.rendering.planned_roots import forget, unwanted_roots, wanted_roots
from sailor_cloud.provision.rendering.root import WantedRoot, root_of, roots

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
EXPIRES_AT = expiry(3600.0)
A2, N1, G2 = GCP_OFFERS
WEST = replace(N1, id="west", region="us-west1", zone="us-west1-a")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def wanted(run: LocalRun, document: PlanDocument) -> dict[str, WantedRoot]:
    found = wanted_roots(run.folder, document, public_key=KEY, expires_at=EXPIRES_AT, ssh_from=SSH_FROM)
    for root in found:
        root.write(run.folder)
    return {f"{root.stack}-{root.region}": root for root in found}


def test_the_region_with_the_network_stays_and_ranges_are_never_moved(run: LocalRun) -> None:
    first = wanted(run, without_bucket(cloud_document(("n0", A2), ("n1", WEST), image=None)))
    assert list(first) == ["gcp-us-central1", "gcp-us-west1"]
    assert first["gcp-us-central1"].variables["network"] is None
    # Sorted before the others, europe-west4 would otherwise make a second network and take the first range.
    second = wanted(run, without_bucket(cloud_document(("n0", A2), ("n1", WEST), ("n2", G2), image=None)))
    assert next(iter(second)) == "gcp-us-central1"
    assert [root.variables["network"] is None for root in second.values()].count(True) == 1
    ranges = {name: root.variables["cidr"] for name, root in second.items()}
    assert ranges["gcp-us-central1"] == first["gcp-us-central1"].variables["cidr"]
    assert len(set(ranges.values())) == 3


def test_a_node_that_stays_keeps_its_variables_and_a_new_one_of_its_name_does_not(run: LocalRun) -> None:
    first = wanted(run, without_bucket(cloud_document(("n0", AWS_OFFERS[0]), image=None)))
    before = first["aws-us-east-1"].variables["nodes"]["n0"]
    dearer = replace(AWS_OFFERS[0], usd_per_hour=9.0)
    second = wanted(run, without_bucket(cloud_document(("n0", dearer), image=None)))
    assert second["aws-us-east-1"].variables["nodes"]["n0"] == before
    other = replace(AWS_OFFERS[0], zone="use1-az6", usd_per_hour=9.0)
    third = wanted(run, without_bucket(cloud_document(("n0", other), image=None)))
    assert third["aws-us-east-1"].variables["nodes"]["n0"]["max_usd_per_hour"] == 9.0


def test_a_region_without_nodes_is_unwanted_and_the_run_s_bucket_never_is(run: LocalRun) -> None:
    wanted(run, cloud_document(("n0", A2), ("n1", WEST), image=None))
    assert [root.stack for root in roots(run.folder)].count("gcp-data") == 1
    later = cloud_document(("n1", WEST), image=None)
    found = wanted_roots(run.folder, later, public_key=KEY, expires_at=EXPIRES_AT, ssh_from=SSH_FROM)
    assert [(root.stack, root.region) for root in unwanted_roots(run.folder, found)] == [("gcp", "us-central1")]
    (data,) = [root for root in found if root.stack == "gcp-data"]
    assert data.region == "us-central1"


def test_a_root_that_was_forgotten_is_not_written_any_more(run: LocalRun) -> None:
    wanted(run, without_bucket(cloud_document(("n0", A2), image=None)))
    forget(root_of(run.folder, Provider("gcp"), "us-central1"))
    assert roots(run.folder) == ()
