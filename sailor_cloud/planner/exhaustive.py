"""Goes through all plans of a small problem, in the order of their lower bounds, until none can be better.

Bounds are of the replay, over all plans of one layout at once (see `pipelines`); what they leave over is replayed, the
least bound first. Where that takes too many replays, the least bound left is that of the plans not replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import comb, inf, prod

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.bill import Bill
from sailor_cloud.planner.draft import Draft, DraftPipeline, nodes_of, to_plan
from sailor_cloud.planner.effort import NORMAL, Effort
from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.improvement import Evaluator
from sailor_cloud.planner.layouts import Layout, enumerate_layouts
from sailor_cloud.planner.pipelines import all_cuts
from sailor_cloud.planner.replica_counts import divisors
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.walks import Walk, is_crowded, walks
from sailor_cloud.simulator import evaluate
from sailor_cloud.units import GB

Floats = NDArray[np.float64]

# A problem is small when it has at most so many layouts, and no layout more combinations of cuts and batch splits.
MAX_LAYOUTS = 2000
MAX_COMBINATIONS = 200_000
# Cuts of one pipeline by numbers of samples, of which a small problem has no more either.
MAX_TABLE = 2_000_000
# Plans of even batches that are gone through at most, one by one.
MAX_EVEN = 20_000
# Plans that are replayed at most for a target.
MAX_REPLAYED = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """Plans that were replayed, best first, those that keep all limits, and a bound on all plans that do.

    `others`: whatever the limits, of each layout one that may be the fastest and one that may be the cheapest among
    them. `complete`: no plan that was not replayed is better.
    """

    drafts: tuple[Draft, ...]
    bound: float
    others: tuple[Draft, ...]
    complete: bool


def small_layouts(space: Space) -> tuple[Layout, ...] | None:
    """Return all layouts, or None if the problem is too big to go through them."""
    layouts: list[Layout] = []
    walk = enumerate_layouts(
        space.candidates,
        space.tp_degrees,
        max_stages=space.layers,
        max_pipelines=space.batch,
        max_nodes=space.scenario.job.constraints.max_nodes,
    )
    for layout in walk:
        cuts = prod(comb(space.layers - 1, len(slots) - 1) for slots in layout)
        splits = comb(space.batch - 1, len(layout) - 1)
        table = max(comb(space.layers - 1, len(slots) - 1) for slots in layout) * space.batch
        if len(layouts) == MAX_LAYOUTS or cuts * splits > MAX_COMBINATIONS or table > MAX_TABLE:
            return None
        layouts.append(layout)
    return tuple(layouts)


def exhaust(
    space: Space, target: Target, layouts: tuple[Layout, ...], *, keep: int, effort: Effort = NORMAL
) -> Exhausted:
    """Return the best of all plans on the layouts; other targets on the same ones take less time."""
    search = _Enumeration(space, target)
    least: dict[Layout, float] = {}
    for number, walk in enumerate(walks(space, layouts)):
        effort.tell(0.5 * number / len(layouts))
        if walk.seconds.size:
            least[walk.layout] = float(search.bounds(walk).min())
            search.look_at_ends(walk)
    order = sorted(least, key=lambda layout: (least[layout], layout))
    for number, walk in enumerate(walks(space, tuple(order))):
        effort.tell(0.5 + 0.5 * number / len(order))
        if least[walk.layout] >= search.best:
            break
        if effort.expired():
            search.left = min(search.left, least[walk.layout])
            break
        search.go_through(walk)
    drafts = sorted(search.kept.values(), key=Draft.order)
    return Exhausted(
        drafts=tuple(drafts[:keep]),
        bound=min(search.best, search.left),
        others=tuple(search.met.values()),
        complete=search.left >= search.best,
    )


@dataclass(slots=True)
class _Enumeration:
    """`best`: the least value of a plan that keeps all limits; `left`: the least bound of those not replayed."""

    space: Space
    target: Target
    best: float = inf
    left: float = inf
    replays: int = 0
    kept: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    met: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    _evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        self._evaluator = Evaluator(Assessor(self.space, self.target))

    def bounds(self, walk: Walk) -> Floats:
        """Return a bound of each entry of a walk, infinite where no plan of it keeps the limits."""
        figures = self._figures(walk, walk.seconds, walk.egress_usd)
        return np.where(np.isfinite(walk.seconds), self.target.value(figures), inf)

    def _figures(self, walk: Walk, seconds: Floats, egress: Floats) -> dict[Figure, Floats]:
        bill = Bill.of(self.space, nodes_of(walk.layout))
        figures = bill.figures(seconds, egress)
        # Slower plans cost less per hour where traffic is paid.
        return figures | {Figure.USD_PER_HOUR: np.broadcast_to(np.asarray(bill.usd_per_hour), seconds.shape)}

    def look_at_ends(self, walk: Walk) -> None:
        """Replay the entries of a walk with the least bounds of time and of money, whatever the limits."""
        figures = self._figures(walk, walk.seconds, walk.egress_usd)
        ends = {int(np.argmin(figures[figure])) for figure in (Figure.ITERATION_S, Figure.USD_PER_ITERATION)}
        for entry in sorted(ends):
            for pipelines in walk.plans(*divmod(entry, walk.seconds.shape[1]), below_s=inf):
                self._replay(pipelines)
                break

    def go_through(self, walk: Walk) -> None:
        """Replay the plans of a walk that may be better than the best one, the least bound first."""
        bounds, columns = self.bounds(walk).ravel(), walk.seconds.shape[1]
        entries = np.flatnonzero(bounds < self.best * (1.0 - TIE))
        for entry in entries[np.argsort(bounds[entries], kind="stable")].tolist():
            if bounds[entry] >= self.best * (1.0 - TIE):
                return
            if self.replays >= MAX_REPLAYED:
                self.left = min(self.left, float(bounds[entry]))
                return
            row, column = divmod(entry, columns)
            for pipelines in walk.plans(row, column, below_s=self._below_s(walk, row, column)):
                self._replay(pipelines)

    def _below_s(self, walk: Walk, row: int, column: int) -> float:
        """Return seconds from which on no plan of an entry is better than the best one."""
        if self.target.goal not in (Figure.ITERATION_S, Figure.DURATION_S) or not np.isfinite(self.best):
            return inf
        low, egress = walk.seconds[row, column], walk.egress_usd[row, column]
        one, two = (
            float(self._figures(walk, np.array(seconds), np.array(egress))[self.target.goal])
            for seconds in (low, 2.0 * low)
        )
        # Both times grow in proportion with an iteration.
        return float(low + (self.best - one) / (two - one) * low)

    def _replay(self, pipelines: tuple[DraftPipeline, ...]) -> None:
        nodes = nodes_of(tuple(part.slots for part in pipelines)).total()
        draft = Draft(
            pipelines=pipelines,
            goal=self.target.goal,
            figures={Figure.NODES: float(nodes)},
            zero_stage=self.space.zero_stage,
        )
        key = tuple(part.key() for part in pipelines)
        if key in self.met:
            return
        found = exact_figures(self._evaluator, draft)
        self.replays += 1
        if found is None:
            return
        self.met[key] = draft = replace(draft, figures=found, expected=found)
        if self._evaluator.assessor.keeps(draft):
            self.kept[key] = draft
            self.best = min(self.best, found[self.target.goal])


def exact_figures(evaluator: Evaluator, draft: Draft) -> dict[Figure, float] | None:
    """Return the figures of a draft under the replay by the planner's bill; None where it doesn't fit."""
    space = evaluator.assessor.space
    known: dict[object, dict[Figure, float] | None] = space.known.searches.setdefault("exact figures", {})
    parts = [
        ([(space.numbers[pool], instance, tp) for pool, instance, tp in part.slots], part.cut, part.microbatch_size)
        for part in draft.pipelines
    ]
    key = f"{space.zero_stage} {parts} {[part.microbatches for part in draft.pipelines]}"
    if key not in known:
        known[key] = _exact_figures(evaluator, draft)
    return known[key]


def _exact_figures(evaluator: Evaluator, draft: Draft) -> dict[Figure, float] | None:
    space = evaluator.assessor.space
    layout = tuple(part.slots for part in draft.pipelines)
    if not is_crowded(space, layout) and evaluator.assessor.paces(draft) is not None:
        return dict(evaluator.figures(draft))
    # It fits only because it has few microbatches, or its ranks share cores.
    evaluation = evaluate(to_plan(space, draft), space.scenario)
    if not evaluation.fits:
        return None
    egress_usd = sum(link.bytes_per_iteration * (link.usd_per_gb or 0.0) / GB for link in evaluation.links)
    seconds = np.array(evaluation.prediction.iteration_s_replay)
    figures = Bill.of(space, nodes_of(layout)).figures(seconds, np.array(egress_usd))
    return {figure: float(value) for figure, value in figures.items()}


def of_even_batches(space: Space, target: Target, layouts: tuple[Layout, ...]) -> list[Draft] | None:
    """Return all drafts on the layouts whose pipelines share cut and microbatch size; None where they are too many."""
    alike = [layout for layout in layouts if len({len(slots) for slots in layout}) == 1]
    sizes = divisors(space.batch)
    if sum(comb(space.layers - 1, len(layout[0]) - 1) for layout in alike) * len(sizes) > MAX_EVEN:
        return None
    assessor = Assessor(space, target)
    shapes = (
        [Shape(slots=slots, cut=cut, microbatch_size=size) for slots in layout]
        for layout in alike
        for cut in map(tuple, all_cuts(space.layers, len(layout[0])).tolist())
        for size in sizes
        if space.allows(cut)
    )
    return [draft for draft in map(assessor.draft, shapes) if draft is not None]
