"""The replayed figures of a plan, by which plans are compared and limited."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.goals import Figure, figures_of
from sailor_cloud.simulator import Evaluation

Floats = NDArray[np.float64]


def replayed(draft: Draft, evaluation: Evaluation) -> dict[Figure, Floats]:
    """Return the figures of a plan by the replay and the complete bill."""
    return {**figures_of(evaluation), Figure.NODES: np.array(draft.figures[Figure.NODES])}
