"""Gradient sums of many cuts at once are those of each cut alone."""

from __future__ import annotations

import random

import numpy as np
import pytest

from factories.planning import example, make_space, tiny_job
from sailor_cloud.planner.enumeration.exhaustive import small_layouts
from sailor_cloud.planner.enumeration.pipeline_bounds import all_cuts
from sailor_cloud.planner.evaluate.all_reduces import SyncTable
from sailor_cloud.planner.evaluate.all_reduces_of_cuts import CutSums

TIED = {
    "model_type": "gpt2",
    "vocab_size": 4096,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    "job",
    [
        tiny_job(blocks=3, hidden=64),
        tiny_job(
            blocks=2, hidden=64, batch=3, zones=("local-a",), accelerators={"CPU-fast": 2, "CPU-slow": 1}
        ).model_copy(update={"model": example("quickstart.yaml", model=TIED).model}),
    ],
)
def test_all_cuts_of_a_layout_take_what_each_takes_alone(job):
    space = make_space(job)
    sums, single, dice = CutSums(space), SyncTable(space), random.Random(0)
    layouts = [layout for layout in small_layouts(space) if 2 <= sum(map(len, layout)) <= 5]
    several = 0
    for layout in dice.sample(layouts, min(40, len(layouts))):
        cuts = [all_cuts(space.layers, len(slots)) for slots in layout]
        chosen = [np.array([dice.choice(part) for _ in range(8)]) for part in cuts]
        seconds, usd = sums.of_cuts(layout, tuple(chosen))
        alone = [
            single.of_plan(layout, tuple(tuple(map(int, part[row])) for part in chosen)) for row in range(len(seconds))
        ]
        assert seconds == pytest.approx([each for each, _ in alone], rel=1e-12, abs=0.0)
        assert usd == pytest.approx([each for _, each in alone], rel=1e-12, abs=0.0)
        several += len({each for each, _ in alone}) > 1
    assert several
