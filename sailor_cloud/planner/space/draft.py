"""A plan during the search, with its figures by the closed form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sailor_cloud.model.plan import Node, Pipeline, PipelineSchedule, Plan, Recompute, Stage
from sailor_cloud.planner.space.goals import Figure, figures_of, target_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import evaluate

# The factor by which a draft exceeds limits, 1 if it keeps them; and its further sort key.
Rank = tuple[float, tuple[Any, ...]]

_KINDS = tuple(Recompute)
# The numbers of layer ranges per stage that are tried. More of them shorten the bubble less and less, and add traffic.
_CHUNKS = (2, 3, 4)


class DraftPipeline(NamedTuple):
    """A pipeline on its slots; stage s holds the layers [cut[s], cut[s + 1])."""

    slots: tuple[Slot, ...]
    cut: tuple[int, ...]
    microbatch_size: int
    microbatches: int
    recompute: tuple[Recompute, ...]

    def key(self) -> tuple[Any, ...]:
        return (*self[:-1], _levels(self.recompute))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Pipelines with their figures by the closed form. `goal` is the figure that was minimised.

    `expected`: estimates of the replayed figures; None if they were not computed.
    """

    pipelines: tuple[DraftPipeline, ...]
    goal: Figure
    figures: Mapping[Figure, float]
    zero_stage: int = 0
    expected: Mapping[Figure, float] | None = None
    _order: tuple[object, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def foreseen(self) -> Mapping[Figure, float]:
        """The expected figures of the replay if they are known, else those of the closed form."""
        return self.figures if self.expected is None else self.expected

    @property
    def pools(self) -> frozenset[int]:
        """The pools of its stages."""
        return frozenset(slot.pool for part in self.pipelines for slot in part.slots)

    def order(self) -> tuple[object, ...]:
        """Return the sort key: the goal, then money, then time, then the plan itself, so that ties are deterministic.

        It is computed once, since searches compare the same drafts again and again.
        """
        if self._order is None:
            order = (
                significant(self.figures[self.goal]),
                significant(self.figures[Figure.USD_PER_ITERATION]),
                significant(self.figures[Figure.ITERATION_S]),
                self.figures[Figure.NODES],
                self.zero_stage,
                len(self.pipelines),
                tuple(pipeline.key() for pipeline in self.pipelines),
            )
            object.__setattr__(self, "_order", order)
            return order
        return self._order


@cache
def _levels(recompute: tuple[Recompute, ...]) -> tuple[int, ...]:
    return tuple(_KINDS.index(kind) for kind in recompute)


def significant(value: float) -> float:
    """Return a value to nine significant digits, so that sums of the same terms in another order are equal."""
    return float(f"{value:.9g}")


def near(rank: Rank) -> tuple[object, ...]:
    """Return a sort key in which limits do not come first: a draft counts as worse by the square of its excess.

    It takes more than the excess to mend it: 10 % less time often costs much more than 10 %.
    """
    excess, (value, *rest) = rank
    return significant(float(value) * excess**2), *rest


@lru_cache(maxsize=1 << 15)
def seats_of(slots: tuple[Slot, ...]) -> tuple[Seat, ...]:
    """Return a pipeline's seats, with nodes numbered in the order of their first use."""
    numbers: dict[tuple[int, int], int] = {}
    return tuple([Seat(pool, tp, numbers.setdefault((pool, instance), len(numbers))) for pool, instance, tp in slots])


def nodes_of(pipelines: tuple[tuple[Slot, ...], ...]) -> Counter[int]:
    """Return the number of nodes of each pool that some pipelines use."""
    return Counter(pool for pool, _ in {slot[:2] for slots in pipelines for slot in slots})


def in_space(draft: Draft, part: Space, space: Space) -> Draft:
    """Return a draft with the pools of a part of a space renumbered as in the whole space, or the reverse.

    It gets the ZeRO stage of the part, unless its own is higher.
    """
    stage = max(part.zero_stage, draft.zero_stage)
    used = () if part is space else draft.pools
    numbers = {pool: space.by_offer.get((part.pools[pool].offer.id, part.pools[pool].row), -1) for pool in used}
    if all(pool == number for pool, number in numbers.items()):
        return draft if draft.zero_stage == stage else replace(draft, zero_stage=stage)
    return replace(
        draft,
        zero_stage=stage,
        pipelines=tuple(
            pipeline._replace(slots=tuple([Slot(numbers[pool], *rest) for pool, *rest in pipeline.slots]))
            for pipeline in draft.pipelines
        ),
    )


def to_plan(space: Space, draft: Draft) -> Plan:
    """Return the plan of a draft: nodes named by zone, accelerator and number, devices in rank order.

    If the job allows other schedules than 1F1B, the plan has the best one for its goal that keeps its limits.
    Interleaving is faster but sends more, which costs money between zones.
    """
    names: dict[tuple[int, int], str] = {}
    numbers: Counter[str] = Counter()
    for pool, instance in sorted({(slot.pool, slot.instance) for part in draft.pipelines for slot in part.slots}):
        offer = space.pools[pool].offer
        stem = f"{offer.zone}-{offer.accelerator.lower()}"
        names[pool, instance] = f"{stem}-{numbers[stem]}"
        numbers[stem] += 1
    next_device: Counter[tuple[int, int]] = Counter()
    pipelines = []
    for number, part in enumerate(draft.pipelines):
        stages = []
        for s, slot in enumerate(part.slots):
            place = (slot.pool, slot.instance)
            start = next_device[place]
            next_device[place] += slot.tp
            stages.append(
                Stage(
                    first_layer=part.cut[s],
                    end_layer=part.cut[s + 1],
                    node=names[place],
                    devices=tuple(range(start, start + slot.tp)),
                    recompute=part.recompute[s],
                )
            )
        pipelines.append(
            Pipeline(
                id=number,
                microbatch_size=part.microbatch_size,
                microbatches=part.microbatches,
                stages=tuple(stages),
            )
        )
    plan = Plan(
        zero_stage=max(space.zero_stage, draft.zero_stage),
        precision=space.scenario.job.training.precision,
        nodes=tuple(
            Node(id=name, offer=space.pools[pool].offer.id, devices=space.pools[pool].devices)
            for (pool, _), name in names.items()
        ),
        pipelines=tuple(pipelines),
    )
    return _scheduled(space, plan)


def _scheduled(space: Space, plan: Plan) -> Plan:
    engine, training = space.scenario.engine, space.scenario.job.training
    if plan.zero_stage >= 2 or all(len(pipeline.stages) == 1 for pipeline in plan.pipelines):
        return plan
    others: list[Plan | None] = []
    if training.zero_bubble and PipelineSchedule.ZERO_BUBBLE in engine.schedules:
        others.append(replace(plan, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE))
    in_rounds = all(engine.runs_in_rounds(each.microbatches, len(each.stages)) for each in plan.pipelines)
    if training.interleaved and PipelineSchedule.INTERLEAVED in engine.schedules and in_rounds:
        others += [plan.interleaved(chunks) for chunks in _CHUNKS]
    each = [plan, *(other for other in others if other is not None)]
    return plan if len(each) == 1 else min(each, key=lambda one: _rank(space, one))


def _rank(space: Space, plan: Plan) -> tuple[bool, float, float, float]:
    """Return the sort key of a plan among others on the same nodes: memory, limits, goal, then time."""
    found, target = evaluate(plan, space.scenario), target_of(space.scenario.job)
    figures = figures_of(found)
    value, seconds = float(figures[target.goal]), float(figures[Figure.ITERATION_S])
    return not found.fits, float(target.excess(figures)), significant(value), seconds
