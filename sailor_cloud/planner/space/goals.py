"""The criteria for plans: the goal, the constraints, and the factor by which plans exceed them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.job import Constraints, Goal, Job
from sailor_cloud.simulator import Evaluation
from sailor_cloud.units import duration_text, usd_text

Floats = NDArray[np.float64]

# A search continues from plans that exceed a limit by up to the first factor: a few moves or the replay may bring them
# within it. Figures by the closed form are less certain, so the second factor applies to them.
NEAR, NEARLY = 1.1, 1.2
# Plans count as equally good below this relative difference, which sums of the same terms in another order may have.
TIE = 1e-9


class Figure(StrEnum):
    """A figure by which plans are compared or limited; smaller is better for all."""

    ITERATION_S = "iteration_s"
    DURATION_S = "duration_s"
    TOTAL_USD = "total_usd"
    USD_PER_ITERATION = "usd_per_iteration"
    USD_PER_HOUR = "usd_per_hour"
    NODES = "nodes"

    @property
    def is_time(self) -> bool:
        return self in (Figure.ITERATION_S, Figure.DURATION_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A constraint of the job as an upper limit on a figure."""

    name: str
    figure: Figure
    at_most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The figure to minimise and the limits to keep."""

    goal: Figure
    limits: tuple[Limit, ...]

    def feasible(self, figures: Mapping[Figure, Floats]) -> NDArray[np.bool_]:
        """Return which plans keep every limit."""
        return np.asarray(self.excess(figures) == 1.0)

    def excess(self, figures: Mapping[Figure, Floats]) -> Floats:
        """Return the largest factor by which plans exceed a limit; 1 if they keep all."""
        worst = np.ones(np.shape(figures[Figure.ITERATION_S]))
        for limit in self.limits:
            factor = figures[limit.figure] / limit.at_most
            worst = np.maximum(worst, np.where(factor <= 1 + TIE, 1.0, factor))
        return worst

    def value(self, figures: Mapping[Figure, Floats]) -> Floats:
        """Return the goal to minimise, infinite if a limit is exceeded."""
        return np.where(self.feasible(figures), figures[self.goal], np.inf)

    def without(self, name: str) -> Target:
        """Return the same goal without one constraint."""
        return Target(goal=self.goal, limits=tuple(limit for limit in self.limits if limit.name != name))


def figures_of(evaluation: Evaluation) -> dict[Figure, Floats]:
    """Return all figures of a plan except its nodes, by replay and complete bill; totals are infinite without steps."""
    prediction, cost = evaluation.prediction, evaluation.cost
    figures = {
        Figure.ITERATION_S: prediction.iteration_s_replay,
        Figure.DURATION_S: math.inf if prediction.duration_s is None else prediction.duration_s,
        Figure.TOTAL_USD: math.inf if cost.total_usd is None else cost.total_usd,
        Figure.USD_PER_ITERATION: cost.usd_per_iteration,
        Figure.USD_PER_HOUR: cost.usd_per_hour,
    }
    return {figure: np.array(value) for figure, value in figures.items()}


def target_of(job: Job) -> Target:
    """Return the target of a job; a deadline or a budget binds only with a known number of steps."""
    return Target(goal=_goal_figure(job), limits=_limits(job.constraints, steps=job.training.steps))


def _goal_figure(job: Job) -> Figure:
    match job.goal:
        case Goal.MAXIMIZE_THROUGHPUT:
            return Figure.ITERATION_S
        case Goal.MINIMIZE_TIME:
            return Figure.ITERATION_S if job.training.steps is None else Figure.DURATION_S
        case Goal.MINIMIZE_COST:
            return Figure.USD_PER_ITERATION if job.training.steps is None else Figure.TOTAL_USD


def _limits(constraints: Constraints, *, steps: int | None) -> tuple[Limit, ...]:
    limits = []
    if steps is not None and constraints.budget_usd is not None:
        limits.append(Limit(name="budget_usd", figure=Figure.TOTAL_USD, at_most=constraints.budget_usd))
    if steps is not None and constraints.deadline is not None:
        limits.append(Limit(name="deadline", figure=Figure.DURATION_S, at_most=constraints.deadline))
    if constraints.max_usd_per_hour is not None:
        limits.append(Limit(name="max_usd_per_hour", figure=Figure.USD_PER_HOUR, at_most=constraints.max_usd_per_hour))
    if constraints.min_throughput is not None:
        limits.append(Limit(name="min_throughput", figure=Figure.ITERATION_S, at_most=1.0 / constraints.min_throughput))
    if constraints.max_usd_per_iteration is not None:
        limits.append(
            Limit(
                name="max_usd_per_iteration",
                figure=Figure.USD_PER_ITERATION,
                at_most=constraints.max_usd_per_iteration,
            )
        )
    return tuple(limits)


# The units of constraints as in the job file.
LIMIT_UNITS = {
    "budget_usd": "USD",
    "deadline": "s",
    "max_usd_per_hour": "USD/h",
    "min_throughput": "iterations/s",
    "max_usd_per_iteration": "USD/iteration",
    "max_nodes": "nodes",
}


def limit_text(name: str, figure: float, duration: Callable[[float], str] = duration_text) -> str:
    """Return a constraint's value in words, with the figures of the report."""
    if name == "deadline":
        return duration(figure)
    unit = LIMIT_UNITS[name]
    return f"{usd_text(figure) if unit.startswith('USD') else f'{figure:g}'} {unit}"


def in_words(figure: Figure, value: float) -> str:
    """Return a figure with its unit: `2.41 s per iteration`, `3 h 5 min`, `81.58 USD`, `5 nodes`."""
    match figure:
        case Figure.ITERATION_S:
            return f"{duration_text(value)} per iteration"
        case Figure.DURATION_S:
            return duration_text(value)
        case Figure.NODES:
            return f"{value:g} nodes"
    unit = {Figure.TOTAL_USD: "USD", Figure.USD_PER_ITERATION: "USD per iteration", Figure.USD_PER_HOUR: "USD/h"}
    return f"{usd_text(value)} {unit[figure]}"
