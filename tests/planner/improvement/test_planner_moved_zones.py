"""All nodes of a zone, bought in another one."""

from __future__ import annotations

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Shape
from sailor_cloud.planner.improvement.moves import moved
from sailor_cloud.planner.space.layouts import Slot

ZONES = ["us-central1-a", "us-central1-b", "us-east1-b"]


def test_nodes_move_only_to_zones_that_sell_them_and_are_unused():
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=ZONES))
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
