"""What money buys: plans over the whole range from cheap to fast, none of which another one beats in both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from sailor_cloud.model.document import FrontierPoint
from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.draft import Draft, nodes_of
from sailor_cloud.planner.goals import Figure
from sailor_cloud.planner.refine import refined
from sailor_cloud.planner.shrinking import Shrinker
from sailor_cloud.planner.space import Space

# Plans judged when nodes are taken away; sets of nodes on which the best plan is refined, those that are not further
# than this behind another one; plans judged for each; points kept.
MOST_JUDGED = 500
_MOST_REFINED = 48
_NEAR = 1.12
REFINING_STEPS = 25
MOST_POINTS = 40


def frontier(assessor: Assessor, seeds: Sequence[Draft]) -> tuple[FrontierPoint, ...]:
    """Return the plans that no other known one beats in time and money, fastest first.

    Known are the seeds, what is left of the unbeaten ones when nodes are taken away or made smaller one by one, and
    what a few steps make of the best on each set of nodes. Figures are those of the closed form.
    """
    known = {draft.order(): draft for draft in _shrunk(assessor, unbeaten(seeds))}
    known |= {draft.order(): draft for draft in seeds}
    for draft in _promising(list(known.values())):
        for better in refined(assessor, draft, lambda draft: (1.0, draft.order()), most=REFINING_STEPS):
            known[better.order()] = better
    points = unbeaten(known.values())
    while len(points) > MOST_POINTS:
        points = _thinned(points)
    return tuple(_point(assessor.space, draft) for draft in points)


def _promising(drafts: list[Draft]) -> list[Draft]:
    """Return the fastest draft on each set of nodes, as far as none is much faster and cheaper; the best ones first."""
    fastest: dict[tuple[tuple[int, int], ...], Draft] = {}
    for draft in sorted(drafts, key=lambda draft: (draft.figures[Figure.ITERATION_S], draft.order())):
        nodes = nodes_of(tuple(part.slots for part in draft.pipelines))
        fastest.setdefault(tuple(sorted(nodes.items())), draft)
    seconds, usd = np.array([(draft.figures[Figure.ITERATION_S], money(draft)) for draft in fastest.values()]).T
    found = []
    for number, draft in enumerate(fastest.values()):
        # By how much another one is faster and cheaper at the same time.
        behind = float(np.minimum(seconds[number] / seconds, usd[number] / usd).max())
        if behind <= _NEAR:
            found.append((behind, number, draft))
    return [draft for _, _, draft in sorted(found, key=lambda entry: entry[:2])[:_MOST_REFINED]]


def _shrunk(assessor: Assessor, drafts: list[Draft]) -> list[Draft]:
    """Return what becomes of drafts as their nodes are taken away; those that are beaten are followed no further."""
    shrinker = Shrinker(assessor.space)
    known, waiting = list(drafts), list(drafts)
    seen: set[tuple[Shape, ...]] = set()
    while waiting and len(seen) < MOST_JUDGED:
        draft = waiting.pop(0)
        if _beaten(draft, known):
            continue
        for shapes in shrinker.smaller(draft):
            if shapes in seen or len(seen) == MOST_JUDGED:
                continue
            seen.add(shapes)
            found = assessor.draft(shapes)
            if found is not None and not _beaten(found, known):
                known.append(found)
                waiting.append(found)
    return known


def _beaten(draft: Draft, others: Iterable[Draft]) -> bool:
    """Return whether another draft is faster and cheaper."""
    seconds, usd = draft.figures[Figure.ITERATION_S], money(draft)
    return any(other.figures[Figure.ITERATION_S] < seconds and money(other) < usd for other in others)


def unbeaten(drafts: Iterable[Draft]) -> list[Draft]:
    """Return the drafts that none beats in both iteration time and money, fastest first."""
    found: list[Draft] = []
    for draft in sorted(drafts, key=lambda draft: (draft.figures[Figure.ITERATION_S], money(draft), draft.order())):
        if not found or money(draft) < money(found[-1]) * (1 - 1e-9):
            found.append(draft)
    return found


def money(draft: Draft) -> float:
    """Return the USD of the run, or of an iteration where the job has no number of steps."""
    total = draft.figures[Figure.TOTAL_USD]
    return total if total < float("inf") else draft.figures[Figure.USD_PER_ITERATION]


def _thinned(points: list[Draft]) -> list[Draft]:
    """Return the points without the one whose neighbours in time are nearest; the ends stay."""
    times = [draft.figures[Figure.ITERATION_S] for draft in points]
    gaps = [times[at + 1] / times[at - 1] for at in range(1, len(times) - 1)]
    drop = 1 + gaps.index(min(gaps))
    return points[:drop] + points[drop + 1 :]


def _point(space: Space, draft: Draft) -> FrontierPoint:
    devices: Counter[str] = Counter()
    zones: set[str] = set()
    for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
        devices[space.pools[pool].accelerator.name] += count * space.pools[pool].devices
        zones.add(space.pools[pool].offer.zone)
    figures, steps = draft.figures, space.scenario.job.training.steps
    return FrontierPoint(
        iteration_s=figures[Figure.ITERATION_S],
        throughput_iterations_per_s=1.0 / figures[Figure.ITERATION_S],
        usd_per_hour=figures[Figure.USD_PER_HOUR],
        usd_per_iteration=figures[Figure.USD_PER_ITERATION],
        total_usd=None if steps is None else figures[Figure.TOTAL_USD],
        devices=dict(sorted(devices.items())),
        zones=tuple(sorted(zones)),
    )
