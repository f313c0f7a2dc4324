"""Plans of blocks: the same stages of several pipelines together on nodes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from factories.planning import example, make_space
from sailor_cloud.model.job import Job
from sailor_cloud.planner.patterns.layer_cuts import Cutter
from sailor_cloud.planner.patterns.node_patterns import MAX_STAGES
from sailor_cloud.planner.patterns.units import units
from sailor_cloud.planner.seeds.blocks import Blocks
from sailor_cloud.planner.seeds.blocks.measures import NAMES, Measures, unbeaten
from sailor_cloud.planner.seeds.blocks.options import Options
from sailor_cloud.planner.seeds.blocks.placing import slots
from sailor_cloud.planner.seeds.frontier_seeds import spread
from sailor_cloud.planner.space.draft import nodes_of, to_plan
from sailor_cloud.planner.space.effort import NORMAL
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.space import Seat
from sailor_cloud.simulator import evaluate

PATH = "gcp-a100-v100.yaml"


@pytest.fixture(scope="module")
def space():
    return make_space(example(PATH, resources__0__accelerators={"A100-40": 16, "V100-16": 8}))


@pytest.fixture(scope="module")
def blocks(space):
    search = Blocks(space, target_of(space.scenario.job))
    search.run()
    return search


def test_pipelines_that_fill_one_fast_node_sum_inside_it(space, blocks):
    best = min(filter(blocks.assessor.keeps, blocks.drafts), key=lambda draft: draft.order())
    assert {space.pools[slot.pool].devices for part in best.pipelines for slot in part.slots} == {16}
    assert sum(nodes_of(tuple(part.slots for part in best.pipelines)).values()) == 1
    assert len(best.pipelines) == 16


def test_every_draft_is_what_the_simulator_says_and_a_valid_plan(space, blocks):
    assert blocks.drafts
    for draft in blocks.drafts[:12]:
        plan = to_plan(space, draft)
        plan.check(layers=space.layers, global_batch_size=space.batch)
        evaluation = evaluate(plan, space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s == pytest.approx(draft.figures[Figure.ITERATION_S], rel=1e-9)


def test_no_row_and_no_node_is_used_twice(space, blocks):
    rows = space.candidates.rows
    for draft in blocks.drafts:
        layout = tuple(part.slots for part in draft.pipelines)
        devices = Counter()
        for pool, count in nodes_of(layout).items():
            devices[space.pools[pool].row] += count * space.pools[pool].devices
        assert all(count <= rows[row].devices for row, count in devices.items())
        taken = Counter()
        for part in layout:
            for slot in part:
                taken[slot.pool, slot.instance] += slot.tp
        assert all(count <= space.pools[pool].devices for (pool, _), count in taken.items())


def test_the_same_search_gives_the_same_drafts(space, blocks):
    again = Blocks(space, target_of(space.scenario.job))
    again.run()
    assert [draft.order() for draft in again.drafts] == [draft.order() for draft in blocks.drafts]


def test_numbers_of_pipelines_fill_the_zones_of_each_cloud_and_all_of_them_evenly():
    """Three zones on one cloud, two on the other: six pipelines are two in each zone of the first."""
    space = make_space(example("seven-kinds.yaml"))
    counts = {count for _, count in Blocks(space, target_of(space.scenario.job)).rough()}
    assert {1, 2, 3, 4, 5, 6, 8, 10, 12} <= counts
    assert not {7, 9, 11} & counts


@pytest.mark.parametrize("replicas", [1, 3, 16])
def test_options_are_put_on_nodes_as_they_say(space, replicas):
    found = Options(space, units(space)).of(2, replicas)
    assert found is not None
    options, measures = found
    assert len(options) == len(measures) > 0
    for option, nodes, stages in zip(options, measures.nodes, measures.stages, strict=True):
        placed = slots(space, (option,), replicas)
        assert placed is not None
        assert len(placed) == replicas
        assert {len(row) for row in placed} == {int(stages)}
        assert stages <= MAX_STAGES
        assert sum(nodes_of(tuple(placed)).values()) == nodes
        assert [slot.tp for slot in placed[0]] == [tp for block in option.tps for tp in block]


def test_the_spread_reaches_from_the_fastest_to_a_cheap_plan(space):
    drafts = spread(space, NORMAL)
    seconds = [draft.figures[Figure.ITERATION_S] for draft in drafts]
    usd = [draft.figures[Figure.USD_PER_ITERATION] for draft in drafts]
    assert max(seconds) > 2 * min(seconds)
    assert max(usd) > 3 * min(usd)


def test_no_other_cut_of_equal_stages_has_a_faster_busiest_stage(space):
    pool = next(index for index, each in enumerate(space.pools) if each.accelerator.name == "A100-40")
    seat = Seat(pool, 1, 0)
    found = Cutter(space).cut((seat,) * 3, size=4, microbatches=64, replicas=2)
    assert found is not None
    cut, longest = found
    times = [space.stages_s(seat, 4, in_flight=3 - s, replicas=2) for s in range(3)]
    assert max(times[s][a, b] for s, (a, b) in enumerate(pairwise(cut))) == pytest.approx(longest, rel=1e-3)
    best = min(
        max(times[0][0, a], times[1][a, b], times[2][b, space.layers])
        for a in range(1, space.layers - 1)
        for b in range(a + 1, space.layers)
    )
    assert longest == pytest.approx(best, rel=1e-3)


def test_layers_that_fit_nowhere_have_no_cut(space):
    pool = next(index for index, each in enumerate(space.pools) if each.accelerator.name == "V100-16")
    assert Cutter(space).cut((Seat(pool, 1, 0),), size=256, microbatches=4, replicas=1) is None


def test_options_that_none_beats_are_those_that_a_look_at_all_pairs_leaves() -> None:
    random = np.random.default_rng(5)
    for count in (1, 2, 30, 120):
        values = random.integers(0, 3, (len(NAMES), count)).astype(np.float64)
        rows = random.integers(0, 2, count)
        measures = Measures(values, rows, rows)
        names = ("layer_s", "stages", "sum_s", "large_s", "cut_s", "out_s", "usd_per_hour", "lost_per_hour")
        smaller = np.array(
            [-measures.speed, -np.minimum(measures.room - measures.ends, 1.0), *(getattr(measures, n) for n in names)]
        ).T
        left = [
            n
            for n, one in enumerate(smaller)
            if not any(
                rows[m] == rows[n] and (other <= one).all() and ((other < one).any() or m < n)
                for m, other in enumerate(smaller)
                if m != n
            )
        ]
        assert unbeaten(measures).tolist() == left


@pytest.fixture(scope="module")
def tight():
    """Eight small devices, on which the first and the last layers leave less room for others than stages between."""
    job = example(PATH, model__preset="llama-3-8b", training__precision="bf16", training__global_batch_size=1024)
    resource = {"provider": "gcp", "zones": ["us-central1-a"], "accelerators": {"L4-24": 8}}
    return make_space(Job.model_validate({**job.model_dump(mode="json"), "constraints": {}, "resources": [resource]}))


def test_middle_stages_may_hold_more_layers_than_those_next_to_a_large_embedding(tight):
    search = Blocks(tight, target_of(tight.scenario.job))
    guess = min(search.rate((1, 1)).guesses, key=lambda guess: guess.iteration_s)
    assert sum(option.stages for option in guess.options) == 8
    [first, *_] = search.of(guess)
    cut = first.pipelines[0].cut
    layers = [end - begin for begin, end in pairwise(cut)]
    assert max(layers[1:-1]) > max(layers[0], layers[-1])


def test_nodes_of_every_size_are_examined(tight):
    assert {unit.devices for unit in units(tight)} == {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("batch", "sizes"), [(16, {1, 2, 4, 8, 16}), (24, {1, 2, 3, 4, 6, 8, 12, 24}), (50, {1, 2, 5, 10, 25, 50})]
)
def test_sizes_that_divide_a_batch_are_tried_at_powers_of_two_and_one_between_each_two(batch, sizes):
    job = example(
        PATH,
        model__preset="gpt2",
        training__global_batch_size=batch,
        training__sequence_length=512,
        resources__0__accelerators={"A100-40": 4},
    )
    assert {size for size, count in Blocks(make_space(job), target_of(job)).rough() if count == 1} == sizes


def test_a_model_that_no_zone_has_memory_for_is_cut_over_two(tight):
    job = tight.scenario.job.model_dump(mode="json")
    resource = {"provider": "gcp", "zones": ["us-central1-a", "us-central1-b"], "accelerators": {"L4-24": 4}}
    space = make_space(Job.model_validate({**job, "resources": [resource]}))
    search = Blocks(space, target_of(space.scenario.job))
    guesses = search.rate((1, 1)).guesses
    found = [draft for guess in guesses for draft in search.of(guess)]
    zones = {space.pools[slot.pool].offer.zone for draft in found for slot in draft.pipelines[0].slots}
    assert zones == {"us-central1-a", "us-central1-b"}


def test_where_money_is_limited_plans_that_cost_far_less_are_judged_before_many_that_cost_too_much():
    changes = {"resources__0__accelerators": {"A100-40": 32, "V100-16": 96}, "resources__0__zones": ["us-central1-a"]}
    found = []
    for budget in (60.0, 121.3):
        limited = make_space(example(PATH, constraints={"budget_usd": budget}, **changes))
        drafts = Blocks(limited, target_of(limited.scenario.job)).run()
        found.append(min((draft.figures[Figure.ITERATION_S] for draft in drafts), default=np.inf))
    assert np.isfinite(found).all()
    assert found[1] <= found[0] * 1.02
