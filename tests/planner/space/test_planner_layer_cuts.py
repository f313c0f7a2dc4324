"""Cuts of pipelines into stages."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest

from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.space import Seat
from sailor_cloud.simulator import busy_s

ZONES = {"resources__0__zones": ["us-central1-a", "us-west1-b"], "resources__0__accelerators": {"V100-16": 16}}
ASKED = {"microbatches": 64, "replicas": 2}


def test_a_cut_is_found_if_a_stage_of_two_layers_takes_longer_than_one_of_three(monkeypatch):
    space = make_space(tiny_job(blocks=6))
    layers = space.layers
    rows = [[1.0, 3.0, *[2.0] * layers][: layers - first] for first in range(layers)]
    monkeypatch.setattr(Cutter, "_table", lambda *_: (rows, 3.0))
    cut, busiest_s = Cutter(space).cut((Seat(0, 1, 0),) * (layers - 1), size=1, microbatches=4, replicas=2)
    assert busiest_s == 3.0
    assert cut == (0, 2, *range(3, layers + 1))


@pytest.fixture(scope="module")
def space():
    return make_space(example("gcp-a100-v100.yaml", **ZONES))


def test_stages_beside_a_slow_link_get_fewer_layers(space):
    seats = seats_in(space, "us-central1-a", "us-central1-a", "us-west1-b", "us-west1-b")
    even, _ = Cutter(space, transfers=False).cut(seats, size=2, **ASKED)
    uneven, _ = Cutter(space).cut(seats, size=2, **ASKED)
    assert uneven[3] - uneven[1] < even[3] - even[1]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("near", [1, 2, 3])
def test_hardly_any_cut_over_a_slow_link_has_a_faster_busiest_run(space, near, size):
    seats = seats_in(space, *["us-central1-a"] * near, *["us-west1-b"] * (4 - near))
    cut, mean_s = Cutter(space).cut(seats, size=size, **ASKED)
    every = {
        (0, *inner, space.layers): mean_of_runs_s(space, seats, (0, *inner, space.layers), size)
        for inner in combinations(range(1, space.layers), 3)
    }
    assert every[cut] <= mean_s * (1 + 1e-9)
    assert mean_s <= 1.06 * min(every.values())


def seats_in(space, *zones):
    pools = {pool.offer.zone: n for n, pool in enumerate(space.pools) if pool.devices == 1}
    return tuple(Seat(pools[zone], 1, s) for s, zone in enumerate(zones))


def mean_of_runs_s(space, seats, cut, size):
    """The largest mean over runs of stages and the transfers between them, as the simulator has it."""
    spans = zip(seats, pairwise(cut), strict=True)
    compute = [
        space.stages_s(seat, size, in_flight=len(seats) - s, replicas=2)[span] for s, (seat, span) in enumerate(spans)
    ]
    between = [space.boundary(*ends, size)[border] for ends, border in zip(pairwise(seats), cut[1:-1], strict=True)]
    return busy_s(np.array(compute), np.array(between), engine=space.scenario.engine).max()
