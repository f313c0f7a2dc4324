"""Restricted spaces, and accelerators that one build of torch can't serve."""

from __future__ import annotations

from itertools import product

import pytest

from factories.planning import example, make_space, plan, tiny_job
from sailor_cloud.planner import Restriction
from sailor_cloud.planner.seeds.narrowing import narrowed
from sailor_cloud.planner.space.restrictions import MOST_ROWS, part_of, variants

JOB = {"blocks": 3, "batch": 6, "hidden": 64}


def test_a_space_without_restrictions_is_searched_as_a_whole_with_zero_1_and_then_without():
    space = make_space(tiny_job())
    assert [(part.pools, part.zero_stage) for part in variants(space, ())] == [(space.pools, 1), (space.pools, 0)]
    assert variants(space.at(1), ()) == (space.at(1),)


@pytest.mark.parametrize(
    "restrictions",
    [(Restriction.ONE_ACCELERATOR,), (Restriction.ONE_ZONE,), (Restriction.ONE_ACCELERATOR, Restriction.ONE_ZONE)],
)
def test_a_restricted_plan_keeps_the_restriction_and_is_never_better(restrictions):
    free, bound = plan(tiny_job(**JOB)), plan(tiny_job(**JOB), *restrictions)
    offers = {offer.id: offer for offer in bound.inputs.offers}
    if Restriction.ONE_ACCELERATOR in restrictions:
        assert len({offers[node.offer].accelerator for node in bound.plan.nodes}) == 1
    if Restriction.ONE_ZONE in restrictions:
        assert len({offers[node.offer].zone for node in bound.plan.nodes}) == 1
    assert bound.objective.value <= free.objective.value
    assert bound.bound <= free.bound


def test_the_restricted_optimum_is_the_best_over_single_choices():
    best = plan(tiny_job(**JOB), Restriction.ONE_ACCELERATOR, Restriction.ONE_ZONE).objective.value
    each = [
        plan(tiny_job(**JOB, zones=(zone,), accelerators={name: 1})).objective.value
        for zone, name in product(("local-a", "local-b"), ("CPU-fast", "CPU-slow"))
    ]
    assert best == pytest.approx(max(each), rel=1e-12)


def test_accelerators_that_need_different_builds_of_torch_are_never_in_one_plan():
    job = example(
        "gcp-a100-v100.yaml",
        resources__0__accelerators={"V100-16": 8, "A100-40": 8, "B200-180": 8},
        resources__0__zones=["us-central1-a", "us-central1-b"],
    )
    space = make_space(job)
    names = {pool.accelerator.name for pool in space.pools}
    parts = [({pool.accelerator.name for pool in part.pools}, part.zero_stage) for part in variants(space, ())]
    assert names == {"V100-16", "A100-40", "B200-180"}
    assert parts == [(names - {absent}, stage) for absent in ("V100-16", "B200-180") for stage in (1, 0)]
    old = part_of(space, {"V100-16", "A100-40"}, {"us-central1-b"}, zero_stage=1)
    assert variants(old, ()) == (old,)


def test_a_region_is_searched_on_its_own_where_there_are_others():
    zones = ["us-central1-a", "us-central1-b", "europe-west4-a"]
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=zones))
    parts = [{pool.offer.zone for pool in part.pools} for part in narrowed(space)]
    assert {"us-central1-a", "us-central1-b"} in parts
    assert set(zones) in parts
    alone = make_space(example("gcp-a100-v100.yaml", resources__0__zones=zones[:2]))
    assert sum(len({pool.offer.zone for pool in part.pools}) == 2 for part in narrowed(alone)) == 1


def test_a_space_of_many_rows_is_searched_in_the_fastest_regions_and_in_the_cheapest_one():
    zones = ["europe-west4-a", "europe-west4-b", "us-central1-a", "us-central1-b", "us-west1-b"]
    job = example(
        "gcp-a100-v100.yaml",
        resources__0__zones=zones,
        resources__0__accelerators={"V100-16": 8, "T4-16": 8, "A100-40": 8},
    )
    space = make_space(job)
    rows = {pool.row for pool in space.pools}
    parts = [{pool.offer.zone for pool in part.pools} for part in narrowed(space)]
    assert len(rows) > MOST_ROWS
    assert all(len({pool.row for pool in part.pools}) <= MOST_ROWS for part in narrowed(space))
    assert {"europe-west4-a", "europe-west4-b"} in parts
    assert {"us-central1-a", "us-central1-b"} in parts
    assert any(len({zone.rsplit("-", 1)[0] for zone in part}) > 1 for part in parts)


def test_entries_that_name_the_same_zone_count_together():
    """A few on-demand nodes do not hide the spot nodes of another entry, and rows stay few."""
    names = {"V100-16": 8, "T4-16": 8, "A100-40": 8}
    zones = ["us-central1-a", "us-central1-b", "europe-west4-a"]
    entries = [
        {"provider": "gcp", "zones": zones[:1], "markets": ["spot"], "accelerators": {"A100-40": 64}},
        {"provider": "gcp", "zones": zones, "markets": ["on-demand"], "accelerators": names},
        {"provider": "gcp", "zones": zones, "markets": ["spot"], "accelerators": names},
    ]
    parts = narrowed(make_space(example("gcp-a100-v100.yaml", resources=entries)))
    assert all(len({pool.row for pool in part.pools}) <= MOST_ROWS for part in parts)
    assert {pool.offer.zone for pool in parts[0].pools} == {"us-central1-a"}
