"""Cuts of pipelines into stages."""

from __future__ import annotations

import numpy as np

from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.space import Seat
from sailor_cloud.simulator import busy_s

ZONES = {"resources__0__zones": ["us-central1-a", "us-west1-b"], "resources__0__accelerators": {"V100-16": 16}}


def test_a_cut_is_found_if_a_stage_of_two_layers_takes_longer_than_one_of_three(monkeypatch):
    space = make_space(tiny_job(blocks=6))
    layers = space.layers
    rows = [[1.0, 3.0, *[2.0] * layers][: layers - first] for first in range(layers)]
    monkeypatch.setattr(Cutter, "_table", lambda *_: (rows, 3.0))
    cut, busiest_s = Cutter(space).cut((Seat(0, 1, 0),) * (layers - 1), size=1, microbatches=4, replicas=2)
    assert busiest_s == 3.0
    assert cut == (0, 2, *range(3, layers + 1))


def test_stages_beside_a_slow_link_get_fewer_layers():
    space = make_space(example("gcp-a100-v100.yaml", **ZONES))
    pools = {pool.offer.zone: n for n, pool in enumerate(space.pools) if pool.accelerator.name == "V100-16"}
    there = [pools[zone] for zone in ("us-central1-a", "us-central1-a", "us-west1-b", "us-west1-b")]
    seats = tuple(Seat(pool, 1, s) for s, pool in enumerate(there))
    asked = {"size": 2, "microbatches": 64, "replicas": 2}
    even, busiest_s = Cutter(space, transfers=False).cut(seats, **asked)
    uneven, mean_s = Cutter(space).cut(seats, **asked)
    beside, alone = (borders[3] - borders[1] for borders in (uneven, even))
    assert beside < alone
    # The largest mean over runs of stages, by the simulator's closed form.
    means = [run_mean_s(space, seats, cut, size=2) for cut in (even, uneven)]
    assert means[1] < 0.99 * means[0]
    assert busiest_s < means[1] <= mean_s * 1.001


def run_mean_s(space, seats, cut, *, size):
    flows = [space.pools[seat.pool].devices for seat in seats]
    compute = [
        space.stages_s(seat, size, in_flight=len(seats) - s, replicas=2)[cut[s], cut[s + 1]]
        for s, seat in enumerate(seats)
    ]
    between = [
        space.boundary(*seats[s : s + 2], size, flows=max(flows[s : s + 2]))[cut[s + 1]] for s in range(len(seats) - 1)
    ]
    return busy_s(np.array(compute), np.array(between), engine=space.scenario.engine).max()
