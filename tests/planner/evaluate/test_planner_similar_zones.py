"""Zones that are nearly alike: told apart where they differ, and plans of one tried in the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.similar_zones import elsewhere, families, moved, shapes_of
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot

ZONES = ["us-central1-a", "us-central1-b", "us-east1-b"]


@pytest.fixture(scope="module")
def space():
    return make_space(example("gcp-a100-v100.yaml", resources__0__zones=ZONES))


def test_zones_of_one_region_that_sell_the_same_are_a_family_and_others_are_not(space):
    assert families(space) == [("us-central1-a", "us-central1-b"), ("us-east1-b",)]


def test_a_zone_with_another_limit_is_not_similar():
    job = example("gcp-a100-v100.yaml")
    less = job.resources[0].model_copy(update={"zones": ("us-central1-b",), "accelerators": {"A100-40": 4}})
    more = job.resources[0].model_copy(update={"zones": ("us-central1-a",), "accelerators": {"A100-40": 8}})
    assert families(make_space(job.model_copy(update={"resources": (more, less)}))) == [
        ("us-central1-a",),
        ("us-central1-b",),
    ]


def test_a_plan_of_one_zone_is_judged_with_the_links_and_prices_of_the_other(space):
    target = replace(target_of(space.scenario.job), limits=())
    assessor = Assessor(space, target)
    pool = next(number for number, pool in enumerate(space.pools) if pool.offer.zone == ZONES[0] and pool.devices == 8)
    two_nodes = [Shape(slots=(Slot(pool, node, 8),), cut=(0, space.layers), microbatch_size=4) for node in range(2)]
    at_home = assessor.draft(two_nodes)
    assert at_home is not None
    (there,) = elsewhere(assessor, [at_home], assessor.rank)
    assert {space.pools[slot.pool].offer.zone for part in there.pipelines for slot in part.slots} == {ZONES[1]}
    assert there.figures[Figure.ITERATION_S] != at_home.figures[Figure.ITERATION_S]
    assert there.figures == assessor.draft(shapes_of(there)).figures


def test_nodes_move_only_to_zones_that_sell_them_and_are_unused(space):
    pools = {pool.offer.id: number for number, pool in enumerate(space.pools)}
    here, there = (pools[f"gcp/{zone}/a2-highgpu-8g/8xA100-40/spot"] for zone in ZONES[:2])
    shapes = tuple(Shape(slots=(Slot(pool, 0, 8),), cut=(0, space.layers), microbatch_size=4) for pool in (here, there))
    assert moved(space, shapes[:1], ZONES[0], ZONES[1]) == shapes[1:]
    assert moved(space, shapes, ZONES[0], ZONES[1]) is None
    assert moved(space, shapes[:1], ZONES[0], "us-west1-b") is None


def test_two_rows_of_one_offer_do_not_move_to_the_same_nodes():
    job = example("quickstart.yaml", resources__0__accelerators={"CPU-fast": 2, "CPU-slow": 1})
    space = make_space(job)
    ids = [pool.offer.id for pool in space.pools]
    one, two = (number for number, offer in enumerate(ids) if ids.count(offer) == 2)
    shapes = tuple(Shape(slots=(Slot(pool, 0, 1),), cut=(0, space.layers), microbatch_size=1) for pool in (one, two))
    home = space.pools[one].offer.zone
    elsewhere = next(pool.offer.zone for pool in space.pools if pool.offer.zone != home)
    assert moved(space, shapes[:1], home, elsewhere) is not None
    assert moved(space, shapes, home, elsewhere) is None
