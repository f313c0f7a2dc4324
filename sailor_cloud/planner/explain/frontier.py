"""The Pareto frontier of time and money.

Money is the cost of the run, or of the nodes per hour. Fewer nodes take longer and often cost as much.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.document import FrontierPoint
from sailor_cloud.planner.evaluate.pareto import Money, OfNodes, behind, figures, of_run, unbeaten
from sailor_cloud.planner.explain.frontier_steps import Explorer
from sailor_cloud.planner.improvement.choice import Chosen
from sailor_cloud.planner.space.draft import Draft, nodes_of, to_plan
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, evaluate

# The replay may be faster than an estimate by up to about the first factor. Between two of the best plans, up to the
# second number are replayed too. Of plans that agree to the third number of parts, only one is kept.
_FASTER = 1.08
_BETWEEN = 3
_PARTS = 1000
# A difference below the first share is no trade; for the price of nodes, which has steps, below the second. The last is
# the number of points kept.
_TRADE, _LUMP = 1.0 / _PARTS, 0.02
MOST_POINTS = 40


def explored(space: Space, target: Target, drafts: Sequence[Draft], effort: Effort) -> list[Draft]:
    """Return the results of single moves from the best of some drafts, regardless of limits on money and time."""
    begun: dict[int, list[Draft]] = defaultdict(list)
    for draft in drafts:
        begun[max(space.zero_stage, draft.zero_stage)].append(draft)
    found: list[Draft] = []
    moneys = (of_run, OfNodes(space))
    wanted = [(stage, money) for stage in sorted(begun) for money in moneys]
    for number, (stage, money) in enumerate(wanted):
        part = space.at(stage)
        share = effort.between(number / len(wanted), (number + 1) / len(wanted))
        neighbours = Explorer(part, target, share, money).run(begun[stage])
        begun[stage] += neighbours
        found += neighbours
    return found


def frontier(space: Space, drafts: Sequence[Draft], chosen: Chosen, effort: Effort) -> tuple[FrontierPoint, ...]:
    """Return the Pareto frontier of the known plans in time and in either sort of money, fastest first.

    Time is that of the run, from the first start to the last teardown, or of an iteration without a number of steps.
    Money is the cost of the run, or of the nodes per hour. The best drafts by the closed form get figures from the
    replay and the complete bill. A plan needs an advantage of at least a thousandth.
    """
    first = _point(space, chosen.draft, chosen.evaluation)
    points: list[FrontierPoint | None] = []
    every = {draft.order(): draft for money in (of_run, OfNodes(space)) for draft in promising(drafts, money)}
    wanted = [draft for order, draft in every.items() if order != chosen.draft.order()]
    for number, draft in enumerate(wanted):
        effort.tell(number / len(wanted))
        points.append(_replayed(space, draft))
    return traded(first, [point for point in points if point is not None and not _covers(first, point)])


def promising(drafts: Sequence[Draft], money: Money = of_run) -> list[Draft]:
    """Return the drafts on the expected frontier, and others that may be on it under the replay."""
    seconds, usd = figures(drafts, money)
    front = unbeaten(seconds, usd, least=_TRADE)
    far = behind(seconds, usd, front)
    found = _thinned(front, seconds)
    known = {_rounded(seconds[index], usd[index]) for index in front}
    taken: Counter[int] = Counter()
    for index in np.lexsort((seconds, far)).tolist():
        between = int(np.searchsorted(seconds[front], seconds[index], side="right"))
        place = _rounded(seconds[index], usd[index])
        if far[index] <= _FASTER and place not in known and taken[between] < _BETWEEN:
            taken[between] += 1
            known.add(place)
            found.append(index)
    return [drafts[index] for index in found]


def _rounded(seconds: float, usd: float) -> tuple[int, int]:
    return round(_PARTS * np.log(seconds)), round(_PARTS * np.log(usd))


def traded(chosen: FrontierPoint, others: list[FrontierPoint]) -> tuple[FrontierPoint, ...]:
    """Return the points that are worth their money, fastest first.

    The chosen plan is among them unless another one beats it.
    """
    points = [chosen, *others]
    seconds, usd, rate = np.array([(point.seconds, point.usd, _rate(point)) for point in points]).T
    cheapest = _trade_offs(seconds, usd, _TRADE)
    if not ((seconds[1:] <= seconds[0]) & (usd[1:] <= usd[0])).any():
        cheapest.add(0)
    kept = sorted(cheapest | _trade_offs(seconds, rate, _LUMP), key=lambda index: (seconds[index], usd[index]))
    ends = {0, *sorted(cheapest, key=lambda index: seconds[index])[-1:]}
    shown = _thinned(kept, seconds, stay=ends, first=set(kept) - cheapest)
    return tuple(replace(points[index], cheapest=index in cheapest) for index in shown)


def _trade_offs(seconds: NDArray[np.float64], usd: NDArray[np.float64], least: float) -> set[int]:
    """Return the indices of the frontier that are faster than the next one by at least a share."""
    kept: list[int] = []
    for index in reversed(unbeaten(seconds, usd, least=least)):
        if not kept or seconds[kept[-1]] > seconds[index] * (1.0 + least):
            kept.append(index)
    return set(kept)


def _thinned(
    front: list[int], seconds: NDArray[np.float64], stay: Set[int] = frozenset(), first: Set[int] = frozenset()
) -> list[int]:
    """Return the points without those that have the closest neighbours in time.

    Those in `first` are dropped first. The ends and those in `stay` are kept.
    """
    points = list(front)
    while len(points) > MOST_POINTS:
        inner = [at for at in range(1, len(points) - 1) if points[at] not in stay]
        among = [at for at in inner if points[at] in first] or inner
        del points[min(among, key=lambda at: seconds[points[at + 1]] / seconds[points[at - 1]])]
    return points


def _rate(point: FrontierPoint) -> float:
    assert point.nodes_usd_per_hour is not None, "every point has it"
    return point.nodes_usd_per_hour


def _covers(one: FrontierPoint, other: FrontierPoint) -> bool:
    """Return whether another plan is neither faster nor cheaper by at least the share of a trade."""
    least = 1.0 - _TRADE
    figures = [(point.seconds, point.usd, _rate(point)) for point in (one, other)]
    return all(theirs >= ours * least for ours, theirs in zip(*figures, strict=True))


def _replayed(space: Space, draft: Draft) -> FrontierPoint | None:
    evaluation = evaluate(to_plan(space, draft), space.scenario)
    return _point(space, draft, evaluation) if evaluation.fits else None


def _point(space: Space, draft: Draft, evaluation: Evaluation) -> FrontierPoint:
    devices: Counter[str] = Counter()
    zones: set[str] = set()
    for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
        devices[space.pools[pool].accelerator.name] += count * space.pools[pool].devices
        zones.add(space.pools[pool].offer.zone)
    prediction, cost = evaluation.prediction, evaluation.cost
    return FrontierPoint(
        iteration_s=prediction.iteration_s_replay,
        throughput_iterations_per_s=prediction.throughput_iterations_per_s,
        usd_per_hour=cost.usd_per_hour,
        usd_per_iteration=cost.usd_per_iteration or 0.0,
        total_usd=cost.total_usd,
        devices=dict(sorted(devices.items())),
        zones=tuple(sorted(zones)),
        nodes_usd_per_hour=OfNodes(space)(draft),
        duration_s=prediction.duration_s,
    )
