"""Microbatch sizes that let pipelines of different speed end together."""

from __future__ import annotations

import math
from collections import Counter
from itertools import product

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement.sizing import Apportioned, with_balanced_sizes
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.replica_counts import divisors

FP32 = {"resources__0__zones": ["us-central1-a"], "resources__0__markets": ["on-demand"], "constraints": {}}


def made(batch, **accelerators):
    names = {"a100": "A100-40", "v100": "V100-16"}
    offered = {names[name]: count for name, count in accelerators.items()}
    changes = {"training__precision": "fp32", "training__global_batch_size": batch}
    job = example("gcp-a100-v100.yaml", resources__0__accelerators=offered, **changes, **FP32)
    space = make_space(job)
    return space, Assessor(space, target_of(job))


def pipelines(space, name, *, nodes, tp):
    """Pipelines of one stage on nodes of 8 devices."""
    pool = next(
        number
        for number, pool in enumerate(space.pools)
        if pool.accelerator.name == name and pool.devices == 8 and pool.max_nodes >= nodes
    )
    return [
        Shape(slots=(Slot(pool, node, tp),), cut=(0, space.layers), microbatch_size=1)
        for node in range(nodes)
        for _ in range(8 // tp)
    ]


def carried(draft):
    return sum(part.microbatch_size * part.microbatches for part in draft.pipelines)


@pytest.mark.parametrize("microbatches", [3, 4, 5, 8, 13])
@pytest.mark.parametrize("batch", [1024, 1000, 997])
def test_any_number_of_pipelines_makes_up_any_batch(batch, microbatches):
    space, assessor = made(batch, a100=24, v100=24)
    shapes = [*pipelines(space, "A100-40", nodes=3, tp=2), *pipelines(space, "V100-16", nodes=3, tp=2)]
    draft = with_balanced_sizes(assessor, shapes, microbatches)
    assert carried(draft) == batch
    assert sorted(part.slots for part in draft.pipelines) == sorted(shape.slots for shape in shapes)


def test_microbatches_that_fit_nowhere_are_no_plan():
    space, assessor = made(1024, v100=24)
    # 85 samples at once.
    assert with_balanced_sizes(assessor, pipelines(space, "V100-16", nodes=3, tp=2), 1) is None


@pytest.mark.parametrize("microbatches", [4, 8])
def test_equal_pipelines_differ_by_one_sample_of_a_microbatch(microbatches):
    space, assessor = made(1024, a100=24)
    draft = with_balanced_sizes(assessor, pipelines(space, "A100-40", nodes=3, tp=2), microbatches)
    sizes = Counter(part.microbatch_size for part in draft.pipelines)
    low = 1024 // microbatches // 12
    assert sizes == {low: 12 - 1024 // microbatches % 12, low + 1: 1024 // microbatches % 12}
    assert {part.microbatches for part in draft.pipelines} == {microbatches}


@pytest.mark.parametrize("microbatches", [16, 32])
def test_no_other_sizes_end_sooner(microbatches):
    space, assessor = made(1024, a100=16, v100=16)
    fast, slow = (pipelines(space, name, nodes=2, tp=4) for name in ("A100-40", "V100-16"))
    draft = with_balanced_sizes(assessor, [*fast, *slow], microbatches)
    reached = max(
        pace.schedule_s(part.microbatches) for pace, part in zip(assessor.paces(draft), draft.pipelines, strict=True)
    )

    def end_s(shapes, size):
        alone = Shape(slots=shapes[0].slots, cut=shapes[0].cut, microbatch_size=size)
        place = assessor.places(tuple(shape.slots for shape in (*fast, *slow)))[0 if shapes is fast else -1]
        pace = assessor.pace(place, alone, 8)
        return float("inf") if pace is None else pace.schedule_s(microbatches)

    # All fast ones of about one size, all slow ones of what is left.
    wanted = 1024 // microbatches
    each = []
    for of_fast in range(4, wanted - 3):
        most_fast, most_slow = -(-of_fast // 4), -(-(wanted - of_fast) // 4)
        each.append(max(end_s(fast, most_fast), end_s(slow, most_slow)))
    assert reached == pytest.approx(min(each), rel=1e-9)
    by_pool = {part.slots[0].pool: part.microbatch_size for part in draft.pipelines}
    assert by_pool[fast[0].slots[0].pool] > by_pool[slow[0].slots[0].pool]


def test_more_pipelines_than_samples_are_no_plan():
    space, assessor = made(8, a100=24)
    shapes = pipelines(space, "A100-40", nodes=3, tp=2)
    assert with_balanced_sizes(assessor, shapes, 1) is None
    assert with_balanced_sizes(assessor, shapes[:8], 2) is None
    assert with_balanced_sizes(assessor, shapes[:8], 1).figures[Figure.NODES] == 2


@pytest.mark.parametrize("names", [["A100-40"], ["A100-40", "V100-16"]])
def test_pipelines_have_a_microbatch_more_than_others_where_equal_shares_miss_the_batch(names):
    """250 samples over 4 pipelines of each accelerator: 4 does not divide 250."""
    space, assessor = made(250, a100=16, v100=16)
    shapes = [shape for name in names for shape in pipelines(space, name, nodes=2, tp=4)]
    apportioned = Apportioned.of(assessor, shapes)
    drafts = apportioned.drafts()
    assert drafts
    assert apportioned.least_s <= min(draft.figures[Figure.ITERATION_S] for draft in drafts)
    for draft in drafts:
        assert carried(draft) == 250
        by_kind = {}
        for part in draft.pipelines:
            by_kind.setdefault(part.slots[0].pool, set()).add((part.microbatch_size, part.microbatches))
        for counts in by_kind.values():
            assert len({size for size, _ in counts}) == 1
            assert max(count for _, count in counts) - min(count for _, count in counts) <= 1


def test_no_other_shares_and_sizes_of_two_kinds_end_sooner():
    """The fastest shares of 256 samples may have sizes such as 17, which divide nothing else."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "gpt2-medium"},
        training={"global_batch_size": 256, "sequence_length": 1024, "steps": 500, "precision": "fp32"},
        resources__0__accelerators={"A100-80": 8, "L4-24": 8},
        **FP32,
    )
    space = make_space(job).at(1)
    assessor = Assessor(space, target_of(job))
    kinds = [pipelines(space, name, nodes=1, tp=1) for name in ("A100-80", "L4-24")]
    best = min(draft.figures[Figure.ITERATION_S] for draft in Apportioned.of(assessor, [*kinds[0], *kinds[1]]).drafts())
    tried, other = 0, math.inf
    for share in range(1, 32):
        for sizes in product(divisors(share), divisors(32 - share)):
            shapes = [
                shape._replace(microbatch_size=size) for size, kind in zip(sizes, kinds, strict=True) for shape in kind
            ]
            counts = [share // sizes[0]] * 8 + [(32 - share) // sizes[1]] * 8
            draft = assessor.draft(shapes, microbatches=counts)
            if draft is not None:
                tried, other = tried + 1, min(other, draft.figures[Figure.ITERATION_S])
    assert tried > 50
    assert best <= other * (1 + 1e-9)
