"""A Terraform state in a run's folder that is another run's: its resources must survive whatever is done with it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.cloud_runs import CloudRun, cloud_run, reached
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.offer import Provider

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("clouds")]


@pytest.fixture(params=[Provider("gcp"), Provider("aws")], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[CloudRun, CloudRun]]:
    """Two runs with their nodes on one cloud; the first one's folder has the second one's states."""
    provider = request.param
    with (
        reached(provider) as cloud,
        cloud_run(provider, tmp_path, cloud=cloud) as harmed,
        cloud_run(provider, tmp_path, cloud=cloud) as other,
    ):
        for run in (harmed, other):
            run.apply()
        for state in other.run.folder.path.glob("terraform/*/stacks/*/terraform.tfstate"):
            shutil.copyfile(state, harmed.run.folder.path / state.relative_to(other.run.folder.path))
        yield harmed, other


def test_down_removes_its_own_run_alone(pair: tuple[CloudRun, CloudRun]) -> None:
    harmed, other = pair
    before = other.cloud.owned_by(other.run.run_id)
    destroyed = harmed.destroy()
    assert other.cloud.owned_by(other.run.run_id) == before
    assert other.nodes() == ["n0", "n1"]
    harmed.assert_gone(destroyed)
    assert any("has resources of another run" in problem for problem in destroyed.problems)


def test_an_apply_with_it_changes_nothing(pair: tuple[CloudRun, CloudRun]) -> None:
    harmed, _ = pair
    before = {run.run.run_id: run.cloud.owned_by(run.run.run_id) for run in pair}
    with pytest.raises(ProvisionError, match=r"terraform\.tfstate has resources of another run"):
        harmed.apply()
    assert {run.run.run_id: run.cloud.owned_by(run.run.run_id) for run in pair} == before
