"""Cuts of pipelines into stages."""

from __future__ import annotations

from factories.planning import make_space, tiny_job
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.space import Seat


def test_a_cut_is_found_if_a_stage_of_two_layers_takes_longer_than_one_of_three(monkeypatch):
    space = make_space(tiny_job(blocks=6))
    layers = space.layers
    rows = [[1.0, 3.0, *[2.0] * layers][: layers - first] for first in range(layers)]
    monkeypatch.setattr(Cutter, "_table", lambda *_: (rows, 3.0))
    cut, busiest_s = Cutter(space).cut((Seat(0, 1, 0),) * (layers - 1), size=1, microbatches=4, replicas=2)
    assert busiest_s == 3.0
    assert cut == (0, 2, *range(3, layers + 1))
