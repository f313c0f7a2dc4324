"""The planner of a run that re-plans buys at no price that may be wrong, unless the user said so."""

from pathlib import Path
from typing import Any

import pytest

from sailor_cloud import planner, workload
from sailor_cloud.clock import SystemClock
from sailor_cloud.launch.replanning.search import CatalogSearch
from sailor_cloud.launch.start import allows_doubtful
from sailor_cloud.model.document import Pick
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal

JOB = parse_job("""
name: doubtful
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 128, steps: 10}
resources:
  - {provider: aws, zones: [use1-az1, use1-az2], markets: [spot], accelerators: {A100-40: 8}}
""")


@pytest.mark.parametrize(("allowed", "zones"), [(False, {"use1-az2"}), (True, {"use1-az1", "use1-az2"})])
def test_a_new_plan_is_offered_doubtful_prices_only_where_they_are_allowed(allowed: bool, zones: set[str]) -> None:
    search = CatalogSearch(workload.decoder(JOB.model), SystemClock(), allow_doubtful=allowed)
    assert {offer.zone for offer in search.offers(JOB)} == zones


@pytest.mark.parametrize("agreed", [None, False, True])
def test_a_controller_that_takes_over_knows_whether_doubtful_prices_are_allowed(
    agreed: bool | None, tmp_path: Path
) -> None:
    folder = RunFolder.create("doubtful", root=tmp_path)
    data = {} if agreed is None else {"allow_doubtful": agreed}
    Journal.of(folder, SystemClock()).append(Event.RUN_CREATED, job="doubtful", **data)
    assert allows_doubtful(folder) is bool(agreed)


def test_a_new_plan_is_for_the_training_program_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(planner, "search", lambda job, **given: asked.update(given))
    CatalogSearch(workload.decoder(JOB.model), SystemClock(), engine="megatron")(JOB, Pick.CHEAPEST)
    assert asked["engine"].name == "megatron"
    assert asked["options"] == planner.SearchOptions(decide=True, choose=Pick.CHEAPEST)
