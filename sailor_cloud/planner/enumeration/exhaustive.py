"""Enumerates all plans of a small problem in the order of their lower bounds.

`pipeline_bounds` gives lower bounds on the replay for all plans of one layout at once. Plans that these bounds do not
exclude are replayed, least bound first. If there are too many, the bound of the search is the least one among the plans
not replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import comb, inf, prod

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.enumeration.combinations import Walk, is_crowded, walks
from sailor_cloud.planner.enumeration.pipeline_bounds import all_cuts
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.evaluate.checkpoints import least_saving_share, saving_share
from sailor_cloud.planner.improvement import Evaluator
from sailor_cloud.planner.space.draft import Draft, DraftPipeline, nodes_of, seats_of, to_plan
from sailor_cloud.planner.space.effort import NORMAL, Effort
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.layouts import Layout, enumerate_layouts
from sailor_cloud.planner.space.replica_counts import divisors
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import egress_usd_per_byte, time_and_traffic

Floats = NDArray[np.float64]

# A problem is small if it has at most this many layouts, and each layout this many combinations of cuts and splits.
MAX_LAYOUTS = 2000
MAX_COMBINATIONS = 200_000
# The most cuts of one pipeline times numbers of samples in a small problem.
MAX_TABLE = 2_000_000
# The most of both in all layouts: about three seconds for each plan and ZeRO stage; in a proof two minutes and 1 GB.
MAX_FIGURES, MAX_PROOF_FIGURES = 2_000_000, 20_000_000
# The most plans of even batches that are enumerated one by one.
MAX_EVEN = 20_000
# The most plans that are replayed for a target, about 3 ms each.
MAX_REPLAYED, MAX_PROOF_REPLAYED = 1000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """Replayed plans that keep all limits, best first, and a bound on all such plans.

    `others`: regardless of limits, from each layout a candidate for the fastest and one for the cheapest plan, unless a
    plan on the same offers beats the whole layout. `complete`: no other plan is better.
    """

    drafts: tuple[Draft, ...]
    bound: float
    others: tuple[Draft, ...]
    complete: bool


def small_layouts(space: Space, most: int = MAX_FIGURES) -> tuple[Layout, ...] | None:
    """Return all layouts, or None if the problem is too large to enumerate; `most`: figures to compute in all."""
    layouts: list[Layout] = []
    tables: dict[tuple[Seat, ...], int] = {}
    figures = 0
    walk = enumerate_layouts(
        space.candidates,
        space.tp_degrees,
        max_stages=space.layers,
        max_pipelines=space.batch,
        max_nodes=space.scenario.job.constraints.max_nodes,
    )
    for layout in walk:
        space.known.deadline.check()
        if not space.keeps_clouds_apart([slot.pool for slot in slots] for slots in layout):
            continue
        cuts = prod(comb(space.layers - 1, len(slots) - 1) for slots in layout)
        splits = comb(space.batch - 1, len(layout) - 1)
        figures += cuts * splits
        tables |= {seats_of(slots): comb(space.layers - 1, len(slots) - 1) * space.batch for slots in layout}
        table = max(tables[seats_of(slots)] for slots in layout)
        if len(layouts) == MAX_LAYOUTS or cuts * splits > MAX_COMBINATIONS or table > MAX_TABLE:
            return None
        if figures + sum(tables.values()) > most:
            return None
        layouts.append(layout)
    return tuple(layouts)


def exhaust(
    space: Space,
    target: Target,
    layouts: tuple[Layout, ...],
    *,
    keep: int,
    effort: Effort = NORMAL,
    known: float = inf,
    replays: int = MAX_REPLAYED,
) -> Exhausted:
    """Return the best of all plans on the layouts if one is better than `known`; later targets take less time."""
    search = _Enumeration(space, target, best=known, left_replays=replays)
    least: dict[Layout, float] = {}
    for number, walk in enumerate(walks(space, layouts)):
        effort.tell(0.5 * number / len(layouts))
        if walk.seconds.size:
            least[walk.layout] = float(search.bounds(walk).min())
    order = sorted(least, key=lambda layout: (least[layout], layout))
    for number, walk in enumerate(walks(space, tuple(order))):
        effort.tell(0.5 + 0.5 * number / len(order))
        if least[walk.layout] < search.best:
            search.replay_promising(walk)
        search.replay_extremes(walk)
    drafts = sorted(search.kept, key=Draft.order)
    return Exhausted(
        drafts=tuple(drafts[:keep]),
        bound=min(search.best, search.left),
        others=tuple(search.replayed.values()),
        complete=search.left >= search.best,
    )


@dataclass(slots=True)
class _Enumeration:
    """`best`: the least value of a plan that keeps all limits; `left`: the least bound of the plans not replayed.

    `left_replays`: how many more plans may be replayed.
    """

    space: Space
    target: Target
    best: float = inf
    left: float = inf
    left_replays: int = MAX_REPLAYED
    kept: list[Draft] = field(default_factory=list)
    replayed: dict[tuple[DraftPipeline, ...], Draft] = field(default_factory=dict)
    # Seconds, USD and offers of the plans so far, per iteration, without those that another one beats in all three.
    _front: list[tuple[float, float, frozenset[int]]] = field(default_factory=list)
    _evaluator: Evaluator = field(init=False)

    def __post_init__(self) -> None:
        self._evaluator = Evaluator(Assessor(self.space, self.target))

    def bounds(self, walk: Walk) -> Floats:
        """Return a bound for each entry of a walk; infinite if no plan of it keeps the limits."""
        figures = self._figures(walk, walk.seconds, walk.egress_usd)
        return np.where(np.isfinite(walk.seconds), self.target.value(figures), inf)

    def _figures(self, walk: Walk, seconds: Floats, egress: Floats) -> dict[Figure, Floats]:
        bill = walk.bill
        saving = min(least_saving_share(self.space, slots) for slots in set(walk.layout))
        figures = bill.figures(seconds, egress, saving=saving)
        # With traffic that costs money, slower plans cost less per hour.
        return figures | {Figure.USD_PER_HOUR: np.broadcast_to(np.asarray(bill.usd_per_hour), seconds.shape)}

    def replay_extremes(self, walk: Walk) -> None:
        """Replay the entries of a walk with the least bounds of time and of money, regardless of limits.

        This is skipped if a replayed plan on at least the same offers needs no more time and no more money.
        """
        figures = self._figures(walk, walk.seconds, walk.egress_usd)
        ends = (Figure.ITERATION_S, Figure.USD_PER_ITERATION)
        pools = frozenset(slot.pool for slots in walk.layout for slot in slots)
        seconds, usd = (float(figures[figure].min()) for figure in ends)
        if any(one <= seconds and other <= usd and pools <= those for one, other, those in self._front):
            return
        for entry in sorted({int(np.argmin(figures[figure])) for figure in ends}):
            for pipelines in walk.plans(*divmod(entry, walk.seconds.shape[1]), below_s=inf):
                self._replay(pipelines)
                break

    def replay_promising(self, walk: Walk) -> None:
        """Replay the plans of a walk that may beat the incumbent, least bound first."""
        bounds, columns = self.bounds(walk).ravel(), walk.seconds.shape[1]
        entries = np.flatnonzero(bounds < self.best * (1.0 - TIE))
        best, below_s = self.best, self._below_s(walk)
        for entry in entries[np.argsort(bounds[entries], kind="stable")].tolist():
            if bounds[entry] >= self.best * (1.0 - TIE):
                return
            if self.left_replays <= 0:
                self.left = min(self.left, float(bounds[entry]))
                return
            row, column = divmod(entry, columns)
            for pipelines in walk.plans(row, column, below_s=below_s):
                self.space.known.deadline.check()
                self._replay(pipelines)
                if self.best < best:
                    best, below_s = self.best, self._below_s(walk)

    def _below_s(self, walk: Walk) -> float:
        """If the goal is time, return the seconds from which on no plan of a walk beats the incumbent."""
        if not self.target.goal.is_time or not np.isfinite(self.best):
            return inf
        one, two = self._figures(walk, np.array([1.0, 2.0]), np.zeros(2))[self.target.goal]
        return float(1.0 + (self.best - one) / (two - one))

    def _replay(self, pipelines: tuple[DraftPipeline, ...]) -> None:
        if pipelines in self.replayed:
            return
        space, goal = self.space, self.target.goal
        known: dict[object, Draft | None] = space.known.searches.setdefault("replayed", {})
        key = (space.zero_stage, space.numbers, pipelines)
        if key not in known:
            known[key] = _replayed(self._evaluator, Draft(pipelines=pipelines, goal=goal, figures={}))
            self.left_replays -= 1
        found = known[key]
        if found is None:
            return
        draft = self.replayed[pipelines] = found if found.goal is goal else replace(found, goal=goal)
        self._keep_ahead(draft)
        if space.known.record is not None:
            space.known.record(space, draft)
        if self._evaluator.assessor.keeps(draft):
            self.kept.append(draft)
            self.best = min(self.best, draft.figures[goal])

    def _keep_ahead(self, draft: Draft) -> None:
        seconds, usd = draft.figures[Figure.ITERATION_S], draft.figures[Figure.USD_PER_ITERATION]
        pools = draft.pools
        if not any(one <= seconds and other <= usd and pools <= those for one, other, those in self._front):
            behind = [each for each in self._front if seconds <= each[0] and usd <= each[1] and each[2] <= pools]
            self._front = [each for each in self._front if each not in behind]
            self._front.append((seconds, usd, pools))


def _replayed(evaluator: Evaluator, draft: Draft) -> Draft | None:
    """Return a draft with its figures under the replay and the planner's bill; None if it does not fit."""
    figures = _exact_figures(evaluator, draft)
    stage = evaluator.assessor.space.zero_stage
    return None if figures is None else replace(draft, zero_stage=stage, figures=figures, expected=figures)


def _exact_figures(evaluator: Evaluator, draft: Draft) -> dict[Figure, float] | None:
    space = evaluator.assessor.space
    layout = tuple(part.slots for part in draft.pipelines)
    if not is_crowded(space, layout) and evaluator.assessor.paces(draft) is not None:
        return dict(evaluator.figures(draft))
    # It fits only because it has few microbatches, or its ranks share cores.
    found = time_and_traffic(to_plan(space, draft), space.scenario)
    if found is None:
        return None
    seconds, traffic = found
    usd = sum(nbytes * egress_usd_per_byte(*zones, space.scenario) for zones, nbytes in traffic.items())
    saving = saving_share(space, layout[0], draft.pipelines[0].cut)
    figures = Bill.of(space, nodes_of(layout)).figures(np.array(seconds), np.array(usd), saving=saving)
    return {figure: float(value) for figure, value in figures.items()}


def of_even_batches(space: Space, target: Target, layouts: tuple[Layout, ...]) -> list[Draft] | None:
    """Return the replayed plans on the layouts whose pipelines share cut and microbatch size; None if too many.

    Of a large number, only the best by the closed form are replayed.
    """
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
    found = sorted((draft for draft in map(assessor.draft, shapes) if draft is not None), key=Draft.order)
    evaluator = Evaluator(assessor)
    every = (_replayed(evaluator, draft) for draft in found[:MAX_REPLAYED])
    return [draft for draft in every if draft is not None]
