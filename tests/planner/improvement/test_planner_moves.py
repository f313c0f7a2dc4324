"""The neighbourhood of a plan: cells that come and go, and limits that are broken less and less."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from factories.planning import example, make_space
from sailor_cloud.model.offer import Market
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement import Improver, Neighbourhood
from sailor_cloud.planner.improvement.local_search import _Descent
from sailor_cloud.planner.improvement.moves import Neighbour, cells_of, fewer_or_more
from sailor_cloud.planner.space.draft import nodes_of
from sailor_cloud.planner.space.goals import Figure, Limit, Target, target_of
from sailor_cloud.planner.space.layouts import Slot


@pytest.fixture(scope="module")
def space():
    return make_space(example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 16, "V100-16": 32}))


def pool_of(space, accelerator, devices):
    return next(
        index
        for index, pool in enumerate(space.pools)
        if pool.accelerator.name == accelerator and pool.devices == devices
    )


def side_by_side(space, count):
    """Pipelines of four stages, each alone on a node of four V100."""
    pool = pool_of(space, "V100-16", 4)
    half = space.layers // 2
    cut = (0, half // 2, half, half + half // 2, space.layers)
    return tuple(
        Shape(slots=tuple(Slot(pool, number, 1) for _ in range(4)), cut=cut, microbatch_size=2)
        for number in range(count)
    )


def test_cells_are_pipelines_that_share_nodes(space):
    apart = side_by_side(space, 3)
    shared = tuple(shape._replace(slots=(apart[0].slots[0], *shape.slots[1:])) for shape in apart[:2])
    assert [len(cell) for cell in cells_of(apart)] == [1, 1, 1]
    assert sorted(len(cell) for cell in cells_of((*shared, apart[2]))) == [1, 2]


def test_a_node_becomes_smaller_with_fewer_pipelines_and_a_new_one_is_full_of_them(space):
    eight, four = (pool_of(space, "V100-16", devices) for devices in (8, 4))
    cut = (0, space.layers // 2, space.layers)
    shapes = (Shape(slots=(Slot(eight, 0, 1),) * 2, cut=cut, microbatch_size=1),) * 4
    loads = []
    for made, _ in neighbours(space, shapes, "full_nodes"):
        load = Counter()
        for slot in (slot for shape in made for slot in shape.slots):
            load[slot[:2]] += slot.tp
        loads.append(load)
    smaller = [load for load in loads if set(load) == {(four, 0)}]
    assert smaller
    assert all(load == {(four, 0): 4} for load in smaller)
    more = [load for load in loads if (eight, 0) in load and len(load) == 2]
    assert {space.pools[pool].accelerator.name for load in more for pool, _ in load} == {"A100-40", "V100-16"}
    assert all(devices == space.pools[pool].devices for load in more for (pool, _), devices in load.items())


def test_equal_cells_are_dropped_or_added_once_on_a_node_of_their_own(space):
    shapes = side_by_side(space, 3)
    fewer, more = fewer_or_more(shapes)
    assert (len(fewer), len(more)) == (2, 4)
    assert sum(nodes_of(tuple(shape.slots for shape in more)).values()) == 4
    assert not list(fewer_or_more(shapes[:1]))


def test_a_plan_over_the_limit_becomes_one_that_keeps_it(space):
    """Five nodes cost too much by the hour for the limit; four of them don't."""
    free = Assessor(space, Target(goal=Figure.ITERATION_S, limits=()))
    five, four = (free.draft(side_by_side(space, count)) for count in (5, 4))
    rate = Figure.USD_PER_HOUR
    most = (five.figures[rate] + four.figures[rate]) / 2
    limit = Limit(name="max_usd_per_hour", figure=rate, at_most=most)
    assessor = Assessor(space, Target(goal=Figure.ITERATION_S, limits=(limit,)))
    assert assessor.excess(five) == pytest.approx(five.figures[rate] / most)
    assert assessor.excess(four) == 1.0
    improver = Improver(space, assessor.target)
    found = improver.descend(five, 200)
    assert found
    assert all(improver.rank(draft)[0] == 1.0 for draft in found)
    assert found[0].expected[Figure.ITERATION_S] <= improver.expected(four).expected[Figure.ITERATION_S]


def neighbours(space, shapes, kind):
    draft = Assessor(space, Target(goal=Figure.ITERATION_S, limits=())).draft(shapes)
    (move,) = [move for move in Neighbourhood(space).kinds(draft) if move.__name__ == kind]
    return list(move())


def test_stages_that_change_places_leave_their_layers_on_equal_devices(space):
    pool = pool_of(space, "V100-16", 4)
    cut = (0, 2, 6, space.layers)
    shape = Shape(slots=(Slot(pool, 0, 1), Slot(pool, 0, 1), Slot(pool, 1, 1)), cut=cut, microbatch_size=2)
    found = [neighbour.shapes[0] for neighbour in neighbours(space, [shape], "order")]
    turned = (Slot(pool, 0, 1), Slot(pool, 1, 1), Slot(pool, 0, 1))
    assert cut in [each.cut for each in found if each.slots == turned]


def test_one_of_several_equal_pipelines_changes_its_order_alone(space):
    pool = pool_of(space, "V100-16", 4)
    cut = (0, space.layers // 2, space.layers)
    shapes = [
        Shape(slots=(Slot(pool, 0, 1), Slot(pool, 1, 1)), cut=cut, microbatch_size=2),
        Shape(slots=(Slot(pool, 0, 1), Slot(pool, 1, 1)), cut=cut, microbatch_size=2),
    ]
    orders = {tuple(shape.slots for shape in found.shapes) for found in neighbours(space, shapes, "order")}
    forward, back = shapes[0].slots, shapes[0].slots[::-1]
    assert (forward, back) in orders
    assert (back, back) in orders


def test_in_a_long_pipeline_slow_stages_give_layers_and_fast_ones_take_them(space):
    pool = pool_of(space, "V100-16", 4)
    lengths = (5, 4, 3, 3, 2, 3, 3, space.layers - 23)
    cut = tuple(sum(lengths[:at]) for at in range(9))
    shape = Shape(slots=tuple(Slot(pool, at // 4, 1) for at in range(8)), cut=cut, microbatch_size=2)
    cuts = [neighbour.shapes[0].cut for neighbour in neighbours(space, [shape], "layers")]
    given = [tuple(b - a for a, b in pairwise(each)) for each in cuts]
    assert (4, 4, 3, 4, 2, 3, 3, lengths[7]) in given
    assert (5, 4, 3, 2, 3, 3, 3, lengths[7]) in given
    assert len(given) == len(set(given))


def test_a_split_gives_a_slower_device_fewer_layers(space):
    fast = pool_of(space, "A100-40", 8)
    shape = Shape(slots=(Slot(fast, 0, 1),), cut=(0, space.layers), microbatch_size=2)
    found = [each.shapes[0] for each in neighbours(space, [shape], "splits")]
    mixed = [each for each in found if each.slots[1:] == shape.slots and each.slots[0].pool != fast]
    mixed = [each for each in mixed if space.pools[each.slots[0].pool].accelerator.name == "V100-16"]
    place = next(each.slots[0] for each in mixed if each.slots[0].tp == 1)
    slow, quick = space.table(place.pool, 1, 2), space.table(fast, 1, 2)
    busier = {b: max(slow.compute_s(0, b), quick.compute_s(b, space.layers)) for b in range(1, space.layers)}
    best = min(busier, key=busier.__getitem__)
    assert best < space.layers // 2
    assert best in [each.cut[1] for each in mixed if each.slots[0] == place]


def test_a_stage_takes_the_devices_of_another_on_its_node_that_is_not_next_to_it(space):
    pool = pool_of(space, "V100-16", 4)
    slots = (Slot(pool, 0, 1), Slot(pool, 1, 1), Slot(pool, 0, 1))
    shape = Shape(slots=slots, cut=(0, 8, 16, space.layers), microbatch_size=2)
    found = {each.shapes[0].slots for each in neighbours(space, [shape], "merges")}
    assert (Slot(pool, 0, 2), Slot(pool, 1, 1)) in found
    assert (Slot(pool, 1, 1), Slot(pool, 0, 2)) in found
    # Stages on other nodes keep theirs.
    assert not any(Slot(pool, 1, 2) in each for each in found)


def test_a_part_of_equal_pipelines_becomes_wider_and_all_keep_their_devices(space):
    pool = pool_of(space, "V100-16", 4)
    shapes = tuple(
        Shape(slots=(Slot(pool, number // 4, 1),), cut=(0, space.layers), microbatch_size=2) for number in range(24)
    )
    made = [each.shapes for each in neighbours(space, shapes, "pipelines")]
    found = {tuple(sorted(shape.slots[0].tp for shape in each)): each for each in made}
    for pairs in (4, 6, 8):
        devices = Counter()
        for shape in found[(1,) * (24 - 2 * pairs) + (2,) * pairs]:
            devices[shape.slots[0][:2]] += shape.slots[0].tp
        assert devices == {(pool, node): 4 for node in range(6)}


def test_plans_that_differ_in_the_numbers_of_equal_nodes_have_one_key(space):
    a, b, c = side_by_side(space, 3)
    assert Neighbour((a, b)).key() == Neighbour((b, c)).key() == Neighbour((c, a)).key()
    assert Neighbour((a, b)).key() != Neighbour((a, b), 4).key()
    together = b._replace(slots=a.slots)
    assert Neighbour((a, together)).key() != Neighbour((a, b)).key()


def test_a_microbatch_grows_to_the_next_size_that_divides_the_share_of_a_pipeline():
    """With 12 samples for each of eight pipelines sizes 5 and 8 leave some pipelines waiting; 6 and 12 don't."""
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            model__preset="gpt2",
            training__global_batch_size=96,
            resources__0__accelerators={"A100-40": 8},
            resources__0__zones=["us-central1-a"],
        )
    )
    pool = pool_of(space, "A100-40", 8)
    assessor = Assessor(space, Target(goal=Figure.ITERATION_S, limits=()))
    shapes = [Shape(slots=(Slot(pool, 0, 1),), cut=(0, space.layers), microbatch_size=4) for _ in range(8)]
    improver = Improver(space, assessor.target)
    best = improver.descend(assessor.draft(shapes), 200)[0]
    assert {part.microbatch_size * part.microbatches for part in best.pipelines} == {12}
    assert 12 in {
        neighbour.shapes[0].microbatch_size
        for neighbour in Neighbourhood(space).every(
            assessor.draft([shape._replace(microbatch_size=6) for shape in shapes])
        )
    }


def test_two_nodes_become_one_that_holds_the_stages_of_both(space):
    one, two = pool_of(space, "V100-16", 1), pool_of(space, "V100-16", 2)
    cut = (0, space.layers // 2, space.layers)
    shape = Shape(slots=(Slot(one, 0, 1), Slot(one, 1, 1)), cut=cut, microbatch_size=2)
    found = [neighbour.shapes[0].slots for neighbour in neighbours(space, [shape], "offers")]
    assert (Slot(two, 0, 1), Slot(two, 0, 1)) in found


def test_a_microbatch_grows_to_the_next_size_that_divides_what_its_pipeline_carries(space):
    """Of a batch of unequal shares: 36 samples in microbatches of 9 or 12."""
    pool, batch = pool_of(space, "A100-40", 8), space.batch
    shapes = [Shape(slots=(Slot(pool, 0, 1),), cut=(0, space.layers), microbatch_size=size) for size in (9, 1)]
    draft = Assessor(space, Target(goal=Figure.ITERATION_S, limits=())).draft(shapes, microbatches=[4, batch - 36])
    sizes = {neighbour.shapes[-1].microbatch_size for neighbour in Neighbourhood(space).kinds(draft)[0]()}
    assert 12 in sizes


def test_one_node_of_several_alike_is_bought_as_another_offer_or_all_of_them_are(space):
    drawn = Assessor(space, target_of(space.scenario.job)).draft(side_by_side(space, 3))
    pool = drawn.pipelines[0].slots[0].pool
    bought = set()
    for neighbour in Neighbourhood(space).every(drawn):
        nodes = nodes_of(tuple(shape.slots for shape in neighbour.shapes))
        if len(neighbour.shapes) == 3 and set(nodes) != {pool} and sum(nodes.values()) == 3:
            bought.add(nodes[pool])
    assert {0, 2} <= bought


def test_pipelines_with_a_microbatch_more_may_have_a_size_of_their_own():
    """Three of four equal pipelines do 24 samples, the last does 28: in four of seven it ends sooner than in seven."""
    job = example(
        "gcp-a100-v100.yaml",
        training__global_batch_size=100,
        resources__0__zones=["us-central1-a"],
        resources__0__accelerators={"V100-16": 16},
    )
    space = make_space(job)
    shapes = [shape._replace(microbatch_size=4) for shape in side_by_side(space, 4)]
    draft = Assessor(space, Target(goal=Figure.ITERATION_S, limits=())).draft(shapes, microbatches=[6, 6, 6, 7])
    (move,) = [move for move in Neighbourhood(space).kinds(draft) if move.__name__ == "microbatches"]
    improver = Improver(space, target_of(job))
    neighbours = [each for each in move() if sorted(shape.microbatch_size for shape in each.shapes) == [4, 4, 4, 7]]
    made = [improver.made(neighbour, 0) for neighbour in neighbours]
    assert [sorted((part.microbatch_size, part.microbatches) for part in each.pipelines) for each in made] == [
        [(4, 6), (4, 6), (4, 6), (7, 4)]
    ]


def test_stages_may_move_to_the_smallest_nodes_and_to_the_cheapest_devices():
    """A limit on money may leave room for a single device more, but not for another node of eight."""
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"]))
    four = pool_of(space, "V100-16", 4)
    cut = (0, space.layers // 2, space.layers)
    shape = Shape(slots=(Slot(four, 0, 4), Slot(four, 1, 4)), cut=cut, microbatch_size=2)
    moved_to = {
        space.pools[slot.pool]
        for neighbour in neighbours(space, [shape], "splits")
        for slot in neighbour.shapes[0].slots
        if slot.pool != four and space.pools[slot.pool].accelerator.name == "V100-16"
    }
    assert {(pool.offer.market, pool.devices) for pool in moved_to} == {(Market.SPOT, 1), (Market.SPOT, 8)}


def one_stage_each(space, places):
    """Pipelines of one stage on one device each, by pool and node."""
    return tuple(Shape(slots=(Slot(*place, 1),), cut=(0, space.layers), microbatch_size=4) for place in places)


def test_the_stages_of_a_node_are_split_over_smaller_nodes(space):
    eight, four = (pool_of(space, "V100-16", devices) for devices in (8, 4))
    shapes = one_stage_each(space, [(eight, number // 8) for number in range(16)])
    every = [each.shapes for each in neighbours(space, shapes, "offers")]
    split = [each for each in every if {shape.slots[0].pool for shape in each} == {four}]
    assert split
    for shapes in split:
        assert sorted(Counter(shape.slots[0][:2] for shape in shapes).values()) == [4] * 4


def test_a_pipeline_stays_on_one_node_where_it_fits(space):
    eight, four = (pool_of(space, "V100-16", devices) for devices in (8, 4))
    half = space.layers // 2
    shapes = tuple(
        Shape(slots=(Slot(eight, 0, 1), Slot(eight, 0, 2)), cut=(0, half, space.layers), microbatch_size=4)
        for _ in range(2)
    )
    every = [each.shapes for each in neighbours(space, shapes, "offers")]
    split = [each for each in every if {slot.pool for shape in each for slot in shape.slots} == {four}]
    assert split
    for shapes in split:
        assert all(len({slot[:2] for slot in shape.slots}) == 1 for shape in shapes)
        assert len({shape.slots[0][:2] for shape in shapes}) == 2


def test_nodes_in_two_zones_become_smaller_together():
    """While one of them is large, its crowded network card makes all-reduces wait."""
    space = make_space(example("gcp-a100-v100.yaml", constraints={}))
    at = {(pool.offer.zone, pool.offer.instance_type, pool.offer.market): n for n, pool in enumerate(space.pools)}
    zones = ("us-central1-a", "us-central1-b")
    eight, four = ([at[zone, f"a2-highgpu-{devices}g", Market.SPOT] for zone in zones] for devices in (8, 4))
    shapes = one_stage_each(space, [(pool, 0) for pool in eight for _ in range(8)])
    every = [each.shapes for each in neighbours(space, shapes, "node_sizes")]
    used = [Counter(shape.slots[0].pool for shape in each) for each in every]
    assert dict.fromkeys(four, 8) in used


def test_of_plans_as_fast_the_cheaper_one_is_better(space):
    target = Target(goal=Figure.ITERATION_S, limits=())
    improver = Improver(space, target)
    pools = {
        pool.offer.market: number
        for number, pool in enumerate(space.pools)
        if pool.offer.instance_type == "n1-standard-32" and pool.accelerator.name == "V100-16"
    }
    spot, on_demand = (
        improver.expected(Assessor(space, target).draft(one_stage_each(space, [(pools[market], 0)] * 4)))
        for market in (Market.SPOT, Market.ON_DEMAND)
    )
    descent = _Descent(improver, 40.0)
    assert descent._is_better(spot, on_demand, improver.rank(on_demand))
    assert not descent._is_better(on_demand, spot, improver.rank(spot))
    assert not descent._is_better(spot, spot, improver.rank(spot))


def test_a_descent_that_still_gains_continues_and_one_from_its_end_stops(space):
    target = Target(goal=Figure.ITERATION_S, limits=())
    improver = Improver(space, target)
    start = improver.expected(Assessor(space, target).draft(side_by_side(space, 2)))
    descent = _Descent(improver, 40.0)
    best = descent.run(start, complete=False)[0]
    # A turn of all kinds of moves ends before the effort is compared.
    assert 40.0 * 1.25 < descent.spent <= 40.0 * 4.0 + 20.0
    again = _Descent(improver, 40.0)
    again.run([*Improver(space, target).descend(best, 400.0), best][0], complete=False)
    assert again.spent <= 40.0 + 20.0


def test_a_complete_descent_ends_at_a_plan_without_better_neighbours():
    small = {"resources__0__accelerators": {"V100-16": 4}, "resources__0__zones": ["us-central1-a"]}
    space = make_space(example("gcp-a100-v100.yaml", **small))
    improver = Improver(space, Target(goal=Figure.ITERATION_S, limits=()))
    start = improver.expected(Assessor(space, improver.target).draft(side_by_side(space, 1)))
    short = improver.descend(start, 4.0)[0]
    assert short.order() not in improver.optima
    best = improver.descend(start, 100.0, complete=True)[0]
    assert best.order() in improver.optima
    found = [
        improver.made(neighbour, stage) for kind in _Descent(improver, 1.0)._kinds(best) for stage, neighbour in kind()
    ]
    assert min(improver.rank(draft) for draft in found if draft is not None) >= improver.rank(best)


def test_pipelines_take_samples_from_as_many_others_as_keep_the_batch():
    counts = {"A100-40": 4, "V100-16": 4}
    job = example("gcp-a100-v100.yaml", training__global_batch_size=64, resources__0__accelerators=counts)
    space = make_space(job)
    fast, slow = pool_of(space, "A100-40", 1), pool_of(space, "V100-16", 1)
    cut = (0, space.layers)
    sizes = {fast: 10, slow: 6}
    shapes = [
        Shape(slots=(Slot(pool, number, 1),), cut=cut, microbatch_size=sizes[pool])
        for pool, count in ((fast, 4), (slow, 4))
        for number in range(count)
    ]
    assert sum(shape.microbatch_size for shape in shapes) == space.batch
    found = {
        tuple(sorted(Counter((shape.slots[0].pool, shape.microbatch_size) for shape in each.shapes).items()))
        for each in neighbours(space, shapes, "microbatches")
    }
    one = {(fast, 10): 3, (fast, 11): 1, (slow, 6): 3, (slow, 5): 1}
    every = {(fast, 11): 4, (slow, 5): 4}
    back = {(fast, 9): 4, (slow, 7): 4}
    for each in (one, every, back):
        assert tuple(sorted(each.items())) in found


def test_one_of_equal_pipelines_moves_to_a_node_with_room(space):
    pool = pool_of(space, "V100-16", 4)
    full, half = [Slot(pool, 0, 1)] * 4, [Slot(pool, 1, 1)] * 2
    shapes = [Shape(slots=(slot,), cut=(0, space.layers), microbatch_size=2) for slot in (*full, *half)]
    found = [
        Counter(slot.instance for shape in each.shapes for slot in shape.slots)
        for each in neighbours(space, shapes, "places")
    ]
    assert {0: 3, 1: 3} in found
    # The full node has no room.
    assert all(loads[0] <= 4 for loads in found)
