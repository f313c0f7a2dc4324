"""Whose a root's state is: only what it has made tells, and the place where it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sailor_cloud.model.job import StateBackend
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.apply.apply import _of_another_run
from sailor_cloud.provision.rendering import data
from sailor_cloud.provision.rendering.root import BACKEND_FILE, Root, root_of
from sailor_cloud.run.folder import RunFolder, resource_name

OTHER = "other-20261121-051313-a1b2"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create("mine-20261122-051313-c3d4", root=tmp_path)


def root(folder: RunFolder) -> Root:
    found = root_of(folder, Provider("gcp"), "us-central1", stack="gcp-data")
    found.path.mkdir(parents=True)
    return found


def state(root: Root, **attributes: Any) -> None:
    instance = {"index_key": attributes.get("bucket", "own"), "attributes": attributes}
    root.state_file.write_text(json.dumps({"resources": [{"mode": "managed", "instances": [instance]}]}))


def test_a_run_may_go_on_from_a_bucket_that_another_one_has_kept(folder: RunFolder) -> None:
    place, bucket = root(folder), resource_name(OTHER, "data")
    state(place, bucket=bucket, id=f"b/{bucket}/roles/storage.objectUser", member="serviceAccount:me")
    assert _of_another_run(folder, place) == ""


@pytest.mark.parametrize("of", ["name", "account_id"])
def test_what_another_run_has_made_is_its_own_also_without_a_tag(folder: RunFolder, of: str) -> None:
    place = root(folder)
    state(place, **{of: resource_name(OTHER, "node")})
    assert "has resources of another run, whose resources are called" in _of_another_run(folder, place)
    state(place, **{of: resource_name(folder.run_id, "node")})
    assert _of_another_run(folder, place) == ""


@pytest.mark.parametrize("bucket", ["gs://states", "s3://states"])
def test_a_state_elsewhere_is_that_of_the_run_in_its_place(folder: RunFolder, bucket: str) -> None:
    place = root(folder)
    where = StateBackend(bucket=bucket, region="us-east-1" if bucket.startswith("s3") else None)
    for run_id, foreign in ((folder.run_id, False), (OTHER, True)):
        (place.path / BACKEND_FILE).write_text(json.dumps(data.backend(where, run_id, "gcp-data-us-central1")))
        assert (f"names the state of another run, {OTHER}" in _of_another_run(folder, place)) is foreign
