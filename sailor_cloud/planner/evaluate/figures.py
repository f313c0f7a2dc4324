"""The figures that plans are compared and limited by, of a plan under the replay."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.goals import Figure
from sailor_cloud.simulator import Evaluation

Floats = NDArray[np.float64]


def replayed(draft: Draft, evaluation: Evaluation) -> dict[Figure, Floats]:
    """Return the figures of a plan by the replay and the whole bill."""
    prediction, cost = evaluation.prediction, evaluation.cost
    figures = {
        Figure.ITERATION_S: prediction.iteration_s_replay,
        Figure.DURATION_S: math.inf if prediction.duration_s is None else prediction.duration_s,
        Figure.TOTAL_USD: math.inf if cost.total_usd is None else cost.total_usd,
        Figure.USD_PER_ITERATION: cost.usd_per_iteration,
        Figure.USD_PER_HOUR: cost.usd_per_hour,
        Figure.NODES: draft.figures[Figure.NODES],
    }
    return {figure: np.array(value) for figure, value in figures.items()}
