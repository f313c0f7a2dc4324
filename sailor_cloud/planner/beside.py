"""What stands beside the chosen plan: the best of smaller spaces, and plans of another kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sailor_cloud.model.document import Alternative, Rejected
from sailor_cloud.planner.draft import Draft, nodes_of, to_plan
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.solving import first_that_holds, solve
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import MOST_ROWS, Restriction
from sailor_cloud.simulator import Evaluation, evaluate

# Limits on money and time that a plan beside the chosen one may break; it then says by how much.
_TOLD = ("budget_usd", "deadline", "max_usd_per_hour", "min_throughput", "max_usd_per_iteration")


@dataclass(slots=True)
class Beside:
    """Alternatives to one chosen draft, in the order in which reports show them."""

    space: Space
    target: Target
    chosen: Draft
    effort: Effort
    found: list[Alternative] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)

    def restricted(self, restrictions: Sequence[tuple[Restriction, ...]]) -> None:
        """Add the best plan of each smaller space that the chosen plan doesn't stand in already.

        Where no plan keeps the limits, the best one that breaks limits on money or time; where there is none either,
        the reason.
        """
        many = len({pool.row for pool in self.space.pools}) > MOST_ROWS
        for chosen in restrictions:
            if self._keeps(chosen):
                continue
            label = " and ".join(_name(restriction) for restriction in chosen)
            if many:
                told = " ".join(f"--restrict {restriction.value}" for restriction in chosen)
                self.rejected.append(Rejected(what=label, why=f"not searched among so many zones; {told} does"))
                continue
            answer = solve(self.space, self.target, chosen, self.effort.lighter())
            held = first_that_holds(self.space, self.target, answer.drafts)
            if held is not None:
                self._add(self._labelled(held.draft, chosen), held.draft, held.evaluation, chosen)
                continue
            loose = replace(self.target, limits=tuple(limit for limit in self.target.limits if limit.name not in _TOLD))
            answer = solve(self.space, loose, chosen, self.effort.lighter())
            held = first_that_holds(self.space, loose, answer.drafts)
            if held is None:
                why = "the model fits in no such set of devices within the zones' limits"
                self.rejected.append(Rejected(what=label, why=why))
            else:
                self._add(self._labelled(held.draft, chosen), held.draft, held.evaluation, chosen)

    def kinds(self, drafts: Iterable[Draft], *, most: int) -> None:
        """Add the best drafts of other kinds: other accelerators, zones, numbers of stages or microbatch sizes."""
        known = {kind(self.space, self.chosen)} | {kind(self.space, draft) for draft in self.drafts}
        added = 0
        for draft in sorted(drafts, key=Draft.order):
            if added == most:
                return
            figures = {figure: np.array(value) for figure, value in draft.figures.items()}
            if kind(self.space, draft) in known or not self.target.feasible(figures):
                continue
            evaluation = evaluate(to_plan(self.space, draft), self.space.scenario)
            if not evaluation.fits:
                continue
            known.add(kind(self.space, draft))
            self._add(described(self.space, draft), draft, evaluation, ())
            added += 1

    def _keeps(self, restrictions: tuple[Restriction, ...]) -> bool:
        """Return whether the chosen plan stands in a smaller space, so that nothing in it is better."""
        accelerators, zones = _where(self.space, self.chosen)
        kept = {
            Restriction.ONE_ACCELERATOR: len(accelerators) == 1,
            Restriction.ONE_ZONE: len(zones) == 1,
            Restriction.EVEN_BATCHES: False,
            Restriction.EVEN_LAYERS: False,
        }
        return all(kept[restriction] for restriction in restrictions)

    def _labelled(self, draft: Draft, restrictions: tuple[Restriction, ...]) -> str:
        accelerators, zones = _where(self.space, draft)
        parts = []
        for restriction in restrictions:
            match restriction:
                case Restriction.ONE_ACCELERATOR:
                    parts.append(f"all {accelerators[0]}")
                case Restriction.ONE_ZONE:
                    parts.append(f"one zone: {zones[0]}")
                case other:
                    parts.append(_name(other))
        return ", ".join(parts)

    def _add(self, label: str, draft: Draft, evaluation: Evaluation, restrictions: tuple[Restriction, ...]) -> None:
        prediction, cost = evaluation.prediction, evaluation.cost
        self.drafts.append(draft)
        self.found.append(
            Alternative(
                label=label,
                plan=to_plan(self.space, draft),
                iteration_s=prediction.iteration_s_replay,
                throughput_iterations_per_s=prediction.throughput_iterations_per_s,
                usd_per_hour=cost.usd_per_hour,
                total_usd=cost.total_usd,
                restrictions=tuple(restriction.value for restriction in restrictions),
            )
        )


def kind(space: Space, draft: Draft) -> tuple[object, ...]:
    """Return what makes a plan one of another kind."""
    stages = tuple(sorted({len(part.cut) - 1 for part in draft.pipelines}))
    return (*_where(space, draft), stages, len({part.microbatch_size for part in draft.pipelines}) > 1)


def described(space: Space, draft: Draft) -> str:
    """Return a plan in a few words."""
    devices: Counter[str] = Counter()
    for pool, count in nodes_of(tuple(part.slots for part in draft.pipelines)).items():
        devices[space.pools[pool].accelerator.name] += count * space.pools[pool].devices
    _, zones = _where(space, draft)
    stages = sorted({len(part.cut) - 1 for part in draft.pipelines})
    deep = f"{stages[0]} stages" if len(stages) == 1 else f"{stages[0]} to {stages[-1]} stages"
    place = zones[0] if len(zones) == 1 else f"{len(zones)} zones"
    bought = " + ".join(f"{count} {name}" for name, count in sorted(devices.items()))
    return f"{bought} in {place}, {len(draft.pipelines)} x {deep}"


def _where(space: Space, draft: Draft) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the accelerators and the zones of a plan."""
    pools = {slot.pool for part in draft.pipelines for slot in part.slots}
    accelerators = tuple(sorted({space.pools[pool].accelerator.name for pool in pools}))
    return accelerators, tuple(sorted({space.pools[pool].offer.zone for pool in pools}))


def _name(restriction: Restriction) -> str:
    return restriction.value.replace("-", " ")
