"""Runs on fake clouds through the real controller, Terraform, SSH and agents, with ranks that need no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.quick_runs import QUICK, QuickRun, quick_run
from sailor_cloud.launch.fleet import agents
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.testing.mock_cloud import MockCloud

# No test here loses a node: on a busy machine a slow answer must not count as one.
OPTIONS = replace(QUICK, ssh_from="203.0.113.7/32", lost_after_s=60.0, agent_timeout_s=60.0, silence_s=20.0)


def cloud_plan(cloud: MockCloud, *, steps: int) -> PlanDocument:
    """Two nodes in two zones, for a job that leaves its checkpoints to the run."""
    offers = GCP_OFFERS[:2] if cloud.provider is Provider("gcp") else AWS_OFFERS
    base = cloud_document(("n0", offers[0]), ("n1", offers[1]), image=None)
    training = base.job.training.model_copy(update={"steps": steps})
    limits = base.constraints.model_copy(update={"budget_usd": 20.0})
    image = cloud.image if cloud.provider is Provider("aws") else None
    changes = {"cloud": base.job.cloud.model_copy(update={"image": image}), "training": training, "constraints": limits}
    return replace(base, job=base.job.model_copy(update=changes), constraints=limits)


@contextmanager
def quick_cloud_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    """A run on the cloud that the environment names, whose nodes count as prepared."""

    async def prepared(*arguments: object, **options: object) -> str:
        return "python3"

    monkeypatch.setattr(agents, "prepared_python", prepared)
    with quick_run(home, monkeypatch) as run:
        yield run
