"""The bounds on time and money: no plan beats them, and less money or fewer nodes raise them."""

from __future__ import annotations

import random
from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest

from factories.planning import example, make_space
from sailor_cloud.model.job import Job
from sailor_cloud.planner.bound.bounds import device_rates, iteration_bound_s, work_bound_s
from sailor_cloud.planner.bound.cost_bound import StageFloors, least_usd
from sailor_cloud.planner.bound.pipelines import Box, Count, Rings, Sizes, kinds_of
from sailor_cloud.planner.bound.placements import Placement, Supply, placements
from sailor_cloud.planner.bound.programme import linear
from sailor_cloud.planner.bound.proof import (
    Branch,
    branches,
    most_per_device,
    placed_s,
    prices_within,
    proven_bound,
    proven_s,
)
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.space.draft import Draft, seats_of, to_plan
from sailor_cloud.planner.space.goals import Figure, Limit, Target, target_of
from sailor_cloud.planner.space.layouts import Slot, card_flows
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import evaluate, gradient_sync_s

SOONEST = Target(goal=Figure.ITERATION_S, limits=())
# Jobs, and plans that are drawn for each.
JOBS, PLANS = 8, 90


def random_job(dice: random.Random) -> Job:
    """A model of any width on nodes of one to sixteen devices in one zone, two, or two regions."""
    return example(
        "gcp-a100-v100.yaml",
        constraints={},
        training__global_batch_size=dice.choice((4, 8, 24, 96)),
        training__sequence_length=64,
        model={
            "model_type": "gpt2",
            "vocab_size": dice.choice((64, 5000, 50000)),
            "hidden_size": dice.choice((64, 512, 2048, 4096)),
            "num_hidden_layers": dice.randint(1, 9),
            "num_attention_heads": 8,
            "max_position_embeddings": 64,
            "tie_word_embeddings": dice.random() < 0.5,
        },
        resources__0__zones=dice.choice((["us-central1-a"], ["us-central1-a", "us-west1-b"])),
        resources__0__accelerators=dice.choice(({"A100-40": 16}, {"A100-40": 16, "V100-16": 8}, {"V100-16": 16})),
        resources__0__markets=["spot"],
    )


def random_shapes(space: Space, dice: random.Random) -> list[Shape]:
    """Pipelines, equal or not, whose stages stand anywhere on up to four nodes, those of one layer often together.

    Sometimes most pipelines keep to a zone each, often the same one.
    """
    pools = [dice.randrange(len(space.pools)) for _ in range(dice.randint(1, 4))]
    free = {(pool, pools[:at].count(pool)): space.pools[pool].devices for at, pool in enumerate(pools)}
    alike, shapes, made = dice.random() < 0.4, [], None
    zones = sorted({space.pools[pool].offer.zone for pool in pools})
    home = dice.choice(zones) if not alike and dice.random() < 0.7 else None
    for _ in range(dice.choice((1, 2, 2, 3, 4, 5, 8))):
        if made is None or not alike:
            zone = home if dice.random() < 0.6 else dice.choice((None, *zones))
            near = sorted(place for place in free if zone in (None, space.pools[place[0]].offer.zone))
            stages = dice.randint(1, min(space.layers, 4))
            places = [dice.choice(near) for _ in range(stages)]
            tps = [dice.choice(space.tp_degrees[pool]) if dice.random() < 0.3 else 1 for pool, _ in places]
            cut = (0, *sorted(dice.sample(range(1, space.layers), stages - 1)), space.layers)
            made = (places, tps, cut, dice.choice((1, 1, 2, 3, 4, 6, 8)))
        places, tps, cut, size = made
        left = dict(free)
        for place, tp in zip(places, tps, strict=True):
            left[place] -= tp
        if min(left.values()) < 0:
            break
        free = left
        slots = tuple(Slot(*place, tp) for place, tp in zip(places, tps, strict=True))
        shapes.append(Shape(slots=slots, cut=cut, microbatch_size=size))
    return renumbered(shapes)


def renumbered(shapes: list[Shape]) -> list[Shape]:
    """The same with nodes of a pool numbered in the order of their use."""
    names: dict[tuple[int, int], int] = {}
    for shape in shapes:
        for slot in shape.slots:
            known = [pool for pool, _ in names]
            names.setdefault((slot.pool, slot.instance), known.count(slot.pool))
    return [
        Shape(
            slots=tuple(Slot(slot.pool, names[slot.pool, slot.instance], slot.tp) for slot in shape.slots),
            cut=shape.cut,
            microbatch_size=shape.microbatch_size,
        )
        for shape in shapes
    ]


def own_boxes(assessor: Assessor, floors: StageFloors, draft: Draft) -> np.ndarray:
    """A range of bottlenecks for each pipeline of a plan that has nothing but the pipeline in it."""
    rows = []
    for pipeline, flows in zip(draft.pipelines, card_flows(tuple(each.slots for each in draft.pipelines)), strict=True):
        size = pipeline.microbatch_size
        shape = Shape(slots=pipeline.slots, cut=pipeline.cut, microbatch_size=size)
        pace = assessor._pace(shape, (seats_of(pipeline.slots), flows), len(draft.pipelines))
        sample_s = max(pace.compute_s) / size
        number = next(at for at, largest in enumerate(floors.sizes) if largest >= size)
        rows.append((pipeline.microbatches > 1, number, sample_s, sample_s))
    return np.array(rows, dtype=np.float64).T


def placement_of(space: Space, draft: Draft) -> Placement:
    """Where the nodes of a plan stand, as the proof sorts plans."""
    zones = [[space.pools[slot.pool].offer.zone for slot in row.slots] for row in draft.pipelines]
    held = [
        {where[next(stage for stage, end in enumerate(row.cut[1:]) if layer < end)] for where, row in pairs}
        for layer in range(space.layers)
        if (pairs := list(zip(zones, draft.pipelines, strict=True)))
    ]
    every = list(placements(space))
    whole = set().union(*zones)
    if len(whole) == 1:
        return next(each for each in every if each.rings_cross is False and each.name in ("", f"all in {min(whole)}"))
    if all(len(each) > 1 for each in held):
        return next(each for each in every if each.rings_cross)
    home = next(each for each in held if len(each) == 1)
    if all(home <= each for each in held):
        across = sum(
            row.microbatch_size * row.microbatches
            for where, row in zip(zones, draft.pipelines, strict=True)
            if set(where) != home
        )
        found = [each for each in every if home & set(each.homes)]
        (there,) = (each for each in found if each.samples[0] <= across <= each.samples[1])
        return there
    return next(each for each in every if each.rings_cross is None and not each.homes)


def assert_in_reach(space: Space, draft: Draft, figures: dict[Figure, float], dice: random.Random) -> None:
    """What the proof says of each pipeline, and of all together, allows a plan the time and the money that it takes."""
    seconds = float(figures[Figure.ITERATION_S])
    figure = dice.choice((Figure.USD_PER_HOUR, Figure.USD_PER_ITERATION, Figure.TOTAL_USD))
    target = Target(goal=Figure.ITERATION_S, limits=(Limit(name="", figure=figure, at_most=float(figures[figure])),))
    units = {pool.accelerator.name: 1 for pool in space.pools}
    placement = placement_of(space, draft)
    branch = next(
        each
        for each in branches(space, target, units, seconds)
        if each.placement.name == placement.name and each.count.most >= len(draft.pipelines)
    )
    assert branch.count.least <= len(draft.pipelines)
    assert branch.refuted_s <= seconds * (1 + 1e-9)
    assert placed_s(space, target, 2.0 * seconds, 0.0)[0] <= seconds * (1 + 1e-9)
    here = branch.placement
    for pipeline in {row.cut: row for row in draft.pipelines}.values():
        zones = {space.pools[slot.pool].offer.zone for slot in pipeline.slots}
        crossing = bool(here.homes) and (len(zones) > 1 or not zones <= set(here.homes))
        kinds = kinds_of(here, branch.count, units, crossing=crossing)
        sizes = Sizes(here.space, branch.count, kinds, crossing=crossing or here.every_crosses)
        size, taken = pipeline.microbatch_size, sum(slot.tp for slot in pipeline.slots)
        for box in (Box(sizes, size, size), Box(sizes, dice.randint(1, size), size + dice.randint(0, 3))):
            samples = size * pipeline.microbatches
            assert box.floor_units(samples, seconds, taken + 1) <= taken
            assert box.least_units(samples, seconds, taken + 1) <= taken
    if dice.random() < 0.2:
        branch.refuted_s = max(branch.refuted_s, dice.choice((0.0, 0.5, 0.99)) * seconds)
        assert not branch.refutes(seconds * (1 + 1e-9))


@pytest.mark.parametrize("seed", range(2))
def test_no_plan_is_cheaper_than_the_ranges_of_its_pipelines_or_sooner_than_the_bound(seed):
    dice = random.Random(seed)
    plans, nearest = 0, 0.0
    for _ in range(JOBS):
        space = make_space(random_job(dice)).at(dice.choice((0, 1)))
        assessor, floors, bound = Assessor(space, SOONEST), StageFloors.of(space), iteration_bound_s(space, SOONEST)
        pools = list(zip(space.pools, space.rates, strict=True))
        rates = np.array(
            [
                min(rate.expected / pool.devices / 3600 for pool, rate in pools if pool.accelerator.name == name)
                for name in floors.accelerators
            ]
        )
        for _ in range(PLANS):
            shapes = random_shapes(space, dice)
            draft = assessor.draft(shapes) if shapes else None
            if draft is None:
                continue
            samples = np.array([pipeline.microbatch_size * pipeline.microbatches for pipeline in draft.pipelines])
            least = float(samples @ least_usd(space, floors, rates, own_boxes(assessor, floors, draft)))
            found = replayed(draft, evaluate(to_plan(space, draft), space.scenario))
            assert bound <= found[Figure.ITERATION_S] * (1 + 1e-9)
            assert least <= found[Figure.USD_PER_ITERATION] * (1 + 1e-9)
            nearest = max(nearest, least / found[Figure.USD_PER_ITERATION])
            plans += 1
            if plans % 10 == 0:
                assert_in_reach(space, draft, found, dice)
    assert plans > JOBS * PLANS / 4
    assert nearest > 0.9


def test_money_that_buys_fewer_devices_raises_the_bound():
    space = make_space(example("gcp-a100-v100.yaml", constraints={}))
    free = iteration_bound_s(space, SOONEST)
    assert free >= work_bound_s(space)
    found = [free]
    for name, figure, at_most in (
        ("max_usd_per_hour", Figure.USD_PER_HOUR, 30.0),
        ("budget_usd", Figure.TOTAL_USD, 45.0),
        ("budget_usd", Figure.TOTAL_USD, 38.0),
        ("max_usd_per_iteration", Figure.USD_PER_ITERATION, 0.019),
    ):
        limit = Limit(name=name, figure=figure, at_most=at_most)
        found.append(iteration_bound_s(space, Target(goal=Figure.ITERATION_S, limits=(limit,))))
    assert found[1] > 1.2 * free
    assert found[3] > found[2] > free
    assert found[4] > free


def test_money_for_one_zone_alone_leaves_no_plan_whose_all_reduces_cross_zones():
    space = make_space(example("gcp-a100-v100.yaml"))
    units = {pool.accelerator.name: 1 for pool in space.pools}
    one, _, crossing, *_ = placements(space)
    limit = Limit(name="", figure=Figure.USD_PER_ITERATION, at_most=0.031)
    target = Target(goal=Figure.ITERATION_S, limits=(limit,))
    assert (one.name, crossing.name) == ("all in us-central1-a", "every all-reduce between zones")
    # 1.63 GB of gradients go each way, for 0.01 USD per GiB.
    assert crossing.egress_usd == pytest.approx(2 * 1_629_724_672 * 0.01 / 2**30)
    assert one.work_bound_s(target, units, 9.0) < 3.1
    assert crossing.work_bound_s(target, units, 9.0) > 50.0


def test_only_a_program_without_a_solution_has_none():
    row, limit = np.array([[1.0]]), np.array([2.0])
    solved = linear(np.array([-1.0]), row, limit)
    assert solved is not None
    assert (solved.cost, solved.prices.tolist()) == (-2.0, [1.0])
    assert linear(np.array([-1.0]), row, -limit) is None
    with pytest.raises(RuntimeError, match="did not solve"):
        linear(np.array([-1.0]), -row, limit)


def test_zones_that_sell_the_same_are_home_in_one_branch():
    alike = make_space(example("gcp-a100-v100.yaml"))
    assert {each.homes for each in placements(alike) if each.homes} == {("us-central1-a", "us-central1-b")}
    one = {"provider": "gcp", "markets": ["spot"]}
    resources = [
        {**one, "zones": [f"us-central1-{zone}"], "accelerators": {"V100-16": n}} for zone, n in (("a", 8), ("b", 9))
    ]
    apart = make_space(example("gcp-a100-v100.yaml", resources=resources))
    assert {each.homes for each in placements(apart) if each.homes} == {("us-central1-a",), ("us-central1-b",)}


@pytest.mark.parametrize("batch", [1, 3, 8, 1024])
def test_ranges_of_samples_that_cross_zones_meet_and_cover_the_batch(batch):
    space = make_space(example("gcp-a100-v100.yaml", training__global_batch_size=batch))
    found = sorted(each.samples for each in placements(space) if each.homes)
    assert (found[0][0], found[-1][1]) == (1, batch)
    assert all(most + 1 == least for (_, most), (least, _) in pairwise(found))


def test_each_pipeline_takes_the_devices_that_one_sample_needs():
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"], constraints={})).at(1)
    (placement,) = placements(space)
    branch = Branch(placement, SOONEST, Count(20, 20), {"A100-40": 3, "V100-16": 1}, priced_s=9.0)
    assert not branch.refutes(4.0)
    supply = Supply.of(placement, SOONEST, branch.units, 4.0, 4.0)
    # In a short time, all-reduces leave no time for a sample on one V100, or even on all devices.
    one, few, too_many = (branch._fewest(False, seconds, supply) for seconds in (1.0, 0.2, 0.1))
    assert one == 1
    assert 1 < few <= supply.at_home() < too_many
    assert 20 * few > supply.at_home()
    assert branch.refutes(0.2)


def test_samples_that_cross_zones_leave_less_money_for_devices():
    job = example("gcp-a100-v100.yaml")
    space, target = make_space(job).at(1), target_of(job)
    crossing = next(each for each in placements(space) if each.samples[1] == 512)
    supply = Supply.of(crossing, target, {"A100-40": 3, "V100-16": 1}, 2.0, 2.0)
    few, many = (supply.at_all(samples) for samples in (257, 512))
    assert 0 < many < 0.7 * few
    assert supply.at_all(513) == 0


def pools_in(space, kind, devices):
    return [n for n, pool in enumerate(space.pools) if (pool.accelerator.name, pool.devices) == (kind, devices)]


def test_a_plan_with_many_samples_in_few_pipelines_across_zones_is_not_refuted():
    """The first columns of its branch cross zones with a single sample each, and the branch needs 257 or more."""
    space = make_space(example("gcp-a100-v100.yaml", constraints={})).at(1)
    eight = pools_in(space, "A100-40", 8)
    home, away = (
        next(n for n in eight if space.pools[n].offer.zone == zone) for zone in ("us-central1-a", "us-central1-b")
    )
    cut = (0, space.layers // 2, space.layers)
    shapes = [
        *(Shape(slots=(Slot(home, 0, 2),), cut=(0, space.layers), microbatch_size=2) for _ in range(3)),
        Shape(slots=(Slot(home, 0, 2), Slot(away, 0, 2)), cut=cut, microbatch_size=2),
    ]
    draft = Assessor(space, SOONEST).draft(shapes)
    seconds = replayed(draft, evaluate(to_plan(space, draft), space.scenario))[Figure.ITERATION_S]
    where = placement_of(space, draft)
    assert where.samples == (257, 512)
    units = {"A100-40": 3, "V100-16": 1}
    branch = Branch(where, SOONEST, Count(4, 4), units, 0.99 * seconds, priced_s=seconds)
    assert not branch.refutes(seconds * (1 + 1e-9))
    assert branch.refutes(0.1 * seconds)


@pytest.mark.parametrize("vocabulary", [50_000, 500_000])
def test_a_tied_weight_between_two_zones_has_two_members_in_each_pipeline(vocabulary):
    zones = ["us-central1-a", "us-west1-b"]
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            constraints={},
            model={
                "model_type": "gpt2",
                "vocab_size": vocabulary,
                "hidden_size": 1024,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "max_position_embeddings": 64,
                "tie_word_embeddings": True,
            },
            training={"global_batch_size": 4, "sequence_length": 64, "steps": 500, "precision": "fp16"},
            resources__0__zones=zones,
            resources__0__accelerators={"A100-40": 2},
            resources__0__markets=["spot"],
        )
    )
    ones = pools_in(space, "A100-40", 1)
    shapes = [Shape((Slot(pool, 0, 1), Slot(pool, 1, 1)), (0, 1, space.layers), 2) for pool in ones]
    draft = Assessor(space, SOONEST).draft(shapes)
    seconds = replayed(draft, evaluate(to_plan(space, draft), space.scenario))[Figure.ITERATION_S]
    crossing = next(each for each in placements(space) if each.rings_cross)
    assert not Branch(crossing, SOONEST, Count(2, 2), {"A100-40": 1}, 0.01).refutes(seconds)
    assert Branch(crossing, SOONEST, Count(2, 2), {"A100-40": 1}, 0.01).refutes(0.5 * seconds)


@pytest.mark.parametrize("name", ["quickstart.yaml", "llama3-8b-two-clouds.yaml"])
def test_stages_of_nodes_with_one_device_and_of_several_clouds_have_rings(name):
    space = make_space(example(name))
    units = {pool.accelerator.name: 1 for pool in space.pools}
    for placement in list(placements(space))[:6]:
        for kind in kinds_of(placement, Count(2, 4), units):
            assert 0.0 <= kind.bucket_s[0] <= kind.bucket_s[1]


def test_there_are_no_more_pipelines_than_devices_that_money_buys():
    space = make_space(example("gcp-a100-v100.yaml")).at(1)
    # For this money there are at most 54 V100, or fewer of both.
    limit = Limit(name="", figure=Figure.USD_PER_HOUR, at_most=65.0)
    target = Target(goal=Figure.ITERATION_S, limits=(limit,))
    crossing = next(each for each in placements(space) if each.rings_cross)
    most = int(65.0 / min(device_rates(space).values()))
    found = [
        Branch(crossing, target, Count(number, number), {"A100-40": 5, "V100-16": 2}).refutes(60.0)
        for number in (most - 2, most + 1)
    ]
    assert found == [False, True]


def test_egress_of_a_second_zone_raises_the_bound_of_a_job_with_a_budget():
    job = example("gcp-a100-v100.yaml")
    space, target = make_space(job), target_of(job)
    together_s = iteration_bound_s(space, target)
    assert placed_s(space, target, 9.0, together_s)[0] > 1.3 * together_s
    assert proven_bound(space, target, 9.0, together_s, branched=False)[0] > 1.3 * together_s
    # A known plan is the highest bound, and without a budget egress takes no devices away.
    assert placed_s(space, target, 1.2 * together_s, together_s) == (1.2 * together_s, "")
    assert placed_s(space, SOONEST, 9.0, together_s) == (together_s, "")


def test_money_refutes_what_devices_alone_do_not():
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"]))
    limit = Limit(name="", figure=Figure.USD_PER_HOUR, at_most=20.0)
    poor, rich = (
        next(iter(branches(space, Target(goal=Figure.ITERATION_S, limits=limits), {"A100-40": 5, "V100-16": 2}, 9.0)))
        for limits in ((limit,), ())
    )
    assert poor.refuted_s > 1.5 * rich.refuted_s
    poor.refuted_s = rich.refuted_s = 0.0
    assert poor.refutes(3.5)
    assert not rich.refutes(3.5)


def test_a_number_of_nodes_raises_the_bound():
    one = make_space(example("gcp-a100-v100.yaml", constraints={"max_nodes": 1}))
    assert iteration_bound_s(one, SOONEST) > 2.0 * iteration_bound_s(make_space(example("gcp-a100-v100.yaml")), SOONEST)


def test_stages_take_no_less_than_their_floor():
    space = make_space(example("gcp-a100-v100.yaml"))
    floors = StageFloors.of(space)
    blocks = floors.blocks
    seats = {(pool.accelerator.name, 1): index for index, pool in enumerate(space.pools)}
    checked = 0
    for kind, (name, tp) in enumerate(zip(floors.accelerators, floors.tp, strict=True)):
        if tp != 1:
            continue
        for size in (1, 5, 9, 14):
            at = next(number for number, largest in enumerate(floors.sizes) if largest >= size)
            for held in (1, 2):
                seat = Seat(seats[name, 1], 1, 0)
                seconds = space.stages_s(seat, size, in_flight=held, replicas=1) / size
                ends = [(seconds[1, 1 + count], 0, count) for count in range(1, blocks + 1)]
                ends += [(seconds[0, 1 + count], 1, count) for count in range(blocks + 1)]
                ends += [(seconds[blocks + 1 - count, blocks + 2], 2, count) for count in range(blocks + 1)]
                for each, sort, count in ends:
                    if held == 1 or sort < 2:
                        assert floors.seconds[held - 1, at, kind, sort, count] <= each * (1 + 1e-9)
                        checked += np.isfinite(each)
    assert checked > 500


def test_the_proof_raises_the_bound_up_to_a_plan_at_most():
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            constraints={},
            training__global_batch_size=16,
            resources__0__zones=["us-central1-a"],
            resources__0__accelerators={"A100-40": 4},
            resources__0__markets=["spot"],
        )
    )
    pool = next(index for index, pool in enumerate(space.pools) if pool.devices == 4)
    slots = [(Slot(pool, 0, 1),) for _ in range(4)]
    draft = Assessor(space, SOONEST).draft(
        [Shape(slots=row, cut=(0, space.layers), microbatch_size=4) for row in slots]
    )
    known_s = replayed(draft, evaluate(to_plan(space, draft), space.scenario))[Figure.ITERATION_S]
    work_s = work_bound_s(space)
    bound_s, branch = proven_s(space, SOONEST, known_s, work_s)
    assert 1.02 * work_s < bound_s <= known_s
    assert "pipelines" in branch
    assert proven_bound(space, SOONEST, known_s, work_s) == (bound_s, branch)
    space.known.deadline.at_s = -1.0
    assert proven_s(space, SOONEST, known_s, work_s)[0] == work_s


@pytest.mark.parametrize(("at_home", "away"), [(4, 2), (2, 4)])
def test_every_pipeline_has_a_device_of_the_home_zone(at_home, away):
    """One pipeline on two devices at home and two that cross zones need four devices there; two are not enough."""
    zones = {"us-central1-a": at_home, "us-central1-b": away}
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            constraints={},
            model={
                "model_type": "gpt2",
                "vocab_size": 64,
                "hidden_size": 4096,
                "num_hidden_layers": 14,
                "num_attention_heads": 8,
                "max_position_embeddings": 1024,
            },
            training={"global_batch_size": 600, "sequence_length": 1024, "steps": 500, "precision": "fp16"},
            resources=[
                {"provider": "gcp", "zones": [zone], "accelerators": {"A100-40": devices}, "markets": ["spot"]}
                for zone, devices in zones.items()
            ],
        )
    )
    here, there = (
        next(n for n, pool in enumerate(space.pools) if (pool.offer.zone, pool.devices) == (zone, 1)) for zone in zones
    )
    places = [(Slot(here, 0, 1), Slot(here, 1, 1)), *((Slot(here, 2 + n, 1), Slot(there, n, 1)) for n in range(2))]
    every = branches(space, SOONEST, {"A100-40": 1}, 9.0)
    branch = next(each for each in every if "us-central1-a" in each.placement.homes)
    branch.count, branch.refuted_s = Count(3, 3), 0.0
    if at_home == 2:
        assert branch.refutes(900.0)
        return
    draft = Assessor(space, SOONEST).draft([Shape(slots, (0, 8, space.layers), 2) for slots in places])
    seconds = replayed(draft, evaluate(to_plan(space, draft), space.scenario))[Figure.ITERATION_S]
    assert not branch.refutes(seconds * (1 + 1e-9))
    assert branch.refutes(0.45 * seconds)


def test_a_branch_is_halved_where_it_can_t_be_raised():
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            constraints={},
            training__global_batch_size=64,
            resources__0__zones=["us-central1-a"],
            resources__0__accelerators={"A100-40": 32},
        )
    ).at(1)
    *_, whole = branches(space, SOONEST, {"A100-40": 1}, 1.0)
    low, high = whole.halves()
    assert whole.count == (17, 32)
    assert (low.count, high.count) == ((17, 23), (24, 32))
    times_s = np.geomspace(work_bound_s(space), 1.0, 60)
    open_s = times_s[bisect_left(times_s, True, key=lambda s: not whole.refutes(s))]
    # The ring of 24 members has smaller messages than that of 17.
    assert not low.refutes(open_s)
    assert high.refutes(open_s)


def test_a_ring_with_more_members_than_fast_cards_waits_for_a_slower_card():
    space = make_space(example("gcp-a100-v100.yaml"))
    types = {
        (pool.offer.zone, pool.offer.instance_type, pool.accelerator.name): n for n, pool in enumerate(space.pools)
    }
    rings = {count: Rings(space, tuple(types.values()), Count(count, count), count) for count in (16, 17, 48)}
    here = [n for n in types.values() if space.pools[n].accelerator.name == "A100-40"]
    slower = [n for n in types.values() if space.pools[n].accelerator.name == "V100-16"]
    # Two zones with eight A100 each: of 17 members nine or more are in one zone.
    few, more, many = (rings[count].bucket_s(here, 1, True)[1] for count in (16, 17, 48))
    assert few < 0.8 * more
    assert more < 1.2 * many
    assert many > 0.9 * rings[48].bucket_s(slower, 1, True)[1]


@pytest.mark.parametrize("members", [2, 12, 36])
def test_an_all_reduce_of_any_size_takes_no_less_than_its_buckets_in_the_bound(members):
    space = make_space(example("gcp-a100-v100.yaml", resources__0__zones=["us-central1-a"]))
    engine = space.scenario.engine
    types = {(pool.offer.instance_type, pool.accelerator.name): number for number, pool in enumerate(space.pools)}
    rings = Rings(space, tuple(types.values()), Count(members, members), members)
    sizes = np.geomspace(1e5, 4e8, 40)
    shares = []
    for pool in types.values():
        start, full = rings.bucket_s([pool], 1, False)
        bound = start * np.ceil(sizes / engine.bucket_bytes) + (full - start) * sizes / engine.bucket_bytes
        # Nodes with a single member each; a shared card is slower.
        for flows in (1, 4, 8):
            links = [space.link(pool, other, same_node=False, pairs=1, flows=flows) for other in types.values()]
            for link in links:
                seconds = gradient_sync_s(sizes, members, link, engine=engine)
                shares.append((bound / seconds).max())
    assert 0.5 < max(shares) <= 1.0 + 1e-9


def test_prices_follow_what_pipelines_of_one_accelerator_do_in_time():
    space = make_space(example("gcp-a100-v100.yaml")).at(1)
    crossing = next(each for each in placements(space) if each.rings_cross)
    count = Count(48, 48)
    for seconds in (1.1, 1.5):
        done = {
            name: most_per_device(Sizes(space, count, kinds_of(crossing, count, {name: 1})), seconds)
            for name in ("A100-40", "V100-16")
        }
        found = prices_within(crossing, count, seconds)
        assert found["A100-40"] / found["V100-16"] == pytest.approx(done["A100-40"] / done["V100-16"], rel=0.04)
    # Too short for any pipeline of V100.
    assert prices_within(crossing, count, 0.1) is None


def test_layers_are_no_slower_per_sample_in_larger_microbatches():
    space = make_space(example("seven-kinds.yaml"))
    first, end = np.triu_indices(space.layers + 1, 1)
    types = {
        (pool.accelerator.name, tp): index for index, pool in enumerate(space.pools) for tp in space.tp_degrees[index]
    }
    for (_, tp), pool in types.items():
        tables = [(size, space.table(pool, tp, size)) for size in (1, 2, 3, 5, 8, 13, 32)]
        each = np.array([(table.forward_s(first, end) + table.backward_s(first, end)) / size for size, table in tables])
        assert (each[1:] <= each[:-1] * (1.0 + 1e-9)).all()
