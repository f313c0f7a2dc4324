"""`plan --prove` searches for longer, and says which branch its bound comes from."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest

from factories.planning import AS_OF, data, example, plan
from sailor_cloud import planner
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Status
from sailor_cloud.planner.improvement import local_search
from sailor_cloud.planner.search import SearchOptions
from sailor_cloud.report.plan.facts import proof

JOB = example(
    "gcp-a100-v100.yaml",
    constraints={},
    resources__0__zones=["us-central1-a"],
    resources__0__accelerators={"A100-40": 8, "V100-16": 8},
)


def test_a_proof_searches_for_longer_and_names_the_branch_that_the_bound_comes_from(monkeypatch):
    monkeypatch.setattr(import_module("sailor_cloud.planner.search"), "_PROOF_S", 2.0)
    depths = []

    def improved(*given, **named):
        depths.append(given[3].depth)
        return local_search.improved(*given, **named)

    monkeypatch.setattr(import_module("sailor_cloud.planner.solving"), "improved", improved)
    prices, links, times = data()
    options = SearchOptions(prove=True)
    document = planner.search(
        JOB, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), options=options
    )
    assert document.status is Status.FEASIBLE
    assert set(depths) == {4.0}
    assert "pipelines" in document.search.weakest_branch
    assert f"(the bound is that of {document.search.weakest_branch})" in proof(document)


@pytest.mark.parametrize("branch", [None, "3 to 4 pipelines, ZeRO-1"])
def test_a_file_has_a_branch_only_where_one_is_known(branch):
    document = plan(JOB)
    assert document.search.weakest_branch is None
    found = replace(document, search=replace(document.search, weakest_branch=branch))
    assert ('"weakest_branch"' in found.to_json()) is (branch is not None)
    assert type(document).from_json(found.to_json()).search.weakest_branch == branch
