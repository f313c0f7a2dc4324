"""The gain from a little more of something: the job is searched again with one limit relaxed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sailor_cloud.catalog import Catalog
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.documents import objective_unit
from sailor_cloud.planner.enumeration.exhaustive import small_layouts
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.explain.decision import draft_of
from sailor_cloud.planner.explain.quota_change import known_quotas, tight_quotas, under_quotas
from sailor_cloud.planner.improvement import improved
from sailor_cloud.planner.improvement.choice import Chosen, best_that_holds
from sailor_cloud.planner.search import LOOSER, Problem
from sailor_cloud.planner.seeds.homogeneous import homogeneous
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.draft import Draft, in_space
from sailor_cloud.planner.space.effort import NORMAL, Deadline, Effort, OutOfTimeError
from sailor_cloud.planner.space.goals import Figure, Target, target_of
from sailor_cloud.planner.space.quotas import unit
from sailor_cloud.planner.space.restrictions import part_of
from sailor_cloud.planner.space.space import Space

# Smaller gains are reported as none, since the search itself may miss as much.
LEAST_GAIN = 1e-3

# The share by which a constraint is relaxed, and its name in words.
_LIMITS = {
    "budget_usd": "10 % more budget",
    "deadline": "10 % more time until the deadline",
    "max_usd_per_hour": "10 % more USD per hour",
    "max_usd_per_iteration": "10 % more USD per iteration",
    "min_throughput": "10 % less throughput asked for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The goal's value before and after a change; a larger value is better only for throughput.

    `after` is None if the changed job is infeasible too. `text` describes the gain in words.
    """

    change: str
    before: float | None
    after: float | None
    unit: str
    text: str

    @property
    def is_nothing(self) -> bool:
        """Whether the change yields no better plan."""
        return self.after == self.before


class _Change(NamedTuple):
    """A change in words, and the changed job; `accelerator`: the one with more devices, if that is the change."""

    words: str
    job: Job
    accelerator: str | None = None


def gains(
    job: Job,
    document: PlanDocument,
    catalog: Catalog,
    problem_of: Callable[[Job], Problem],
    space: Space | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
    found: Callable[[Gain], None] = lambda gain: None,
    deadline: Deadline | None = None,
    nearly: Sequence[Draft] = (),
) -> tuple[Gain, ...]:
    """Return the gain from more of each thing, in the order of the job file, with the account's quotas last.

    space: that of the job; searches with other limits on the same plans reuse it. `progress` gets, before each search,
    the number of finished searches and their total; `found` gets each gain at once. Searches that have not started by
    the `deadline` are skipped.

    Small spaces are searched completely. In large ones, a local search starts from the plan, from homogeneous plans,
    and from `nearly`, those of the space that break limits by a little. So a gain may be larger than shown.
    """
    effort, deadline = NORMAL, deadline or Deadline()
    searched = Searched(effort=effort)
    wanted: list[tuple[_Change, Space | None]] = [(each, None) for each in _changes(job, document, catalog)]
    if space is not None:
        wanted += [(_Change(change, job), wider) for change, wider in _wider(space)]
    before = None if document.objective is None else document.objective.value
    asked = document.decision is not None and document.decision.asked is not None
    made: list[Gain] = []
    try:
        if space is not None:
            space.known.deadline = deadline
        unsure = asked or document.objective is None or space is None or small_layouts(space) is None
        if space is not None and document.plan is not None and unsure:
            # A better plan for the unchanged job is not the gain of a change. There may be one if the plan serves
            # another goal, comes from a file, or comes from a search that was cut short.
            before = _better(job, before, _value(searched, space, _Change("", job), document, effort, ()))
        for number, (change, wider) in enumerate(wanted):
            progress(number, len(wanted))
            rebuilt = space is None or change.job.resources != job.resources or _nodes(change.job) != _nodes(job)
            there = wider or (problem_of(change.job).space if rebuilt else space)
            assert there is not None, "a space is built where there is none"
            there.known.deadline = deadline
            if space is not None and rebuilt:
                there.share_tables(space)
            begun = nearly if there is space else ()
            value = _value(Searched(effort=effort) if rebuilt else searched, there, change, document, effort, begun)
            made.append(_gain(change.words, job, before, value, own=_own(job, document)))
            found(made[-1])
    except OutOfTimeError:
        pass
    return tuple(made)


def _nodes(job: Job) -> int | None:
    return job.constraints.max_nodes


def _value(
    searched: Searched,
    space: Space,
    change: _Change,
    document: PlanDocument,
    effort: Effort,
    nearly: Sequence[Draft],
) -> float | None:
    """Return the goal's value of the best plan of a space under a job's limits, or None if there is no plan."""
    if not space.pools:
        return None
    target = target_of(change.job)
    if document.plan is None or small_layouts(space) is not None:
        _, chosen = searched.best(space, target)
    else:
        chosen = _nearby(space, target, document.plan, effort, change.accelerator, nearly)
    if chosen is None:
        return None
    figure = float(replayed(chosen.draft, chosen.evaluation)[target.goal])
    return 1.0 / figure if change.job.goal is Goal.MAXIMIZE_THROUGHPUT else figure


def _nearby(
    space: Space, target: Target, plan: Plan, effort: Effort, accelerator: str | None, nearly: Sequence[Draft]
) -> Chosen | None:
    """Return the best of a plan, homogeneous plans, one of `nearly`, and their improvements by local search.

    `accelerator`: the only one with more devices than before; homogeneous plans on others are no better than the plan.
    """
    zones = {pool.offer.zone for pool in space.pools}
    there = space if accelerator is None else part_of(space, {accelerator}, zones)
    drafts = [in_space(draft, there, space) for draft in homogeneous(there, target)]
    assessor = Assessor(space, target)
    best = min(drafts, key=assessor.rank, default=None)
    kept = [draft for draft in nearly if assessor.excess(draft, draft.foreseen) == 1.0]
    other = min(kept, key=lambda draft: draft.foreseen[target.goal], default=None)
    given = draft_of(plan, space, target)
    begun = [draft for draft in (given, best, other) if draft is not None]
    made = improved(space, target, begun, effort.lighter().quiet(), most=len(begun))
    return best_that_holds(space, target, sorted((*begun, *made), key=Draft.order))


def _wider(space: Space) -> Iterator[tuple[str, Space]]:
    """Yield the space with room for one more node under each quota that can bind."""
    known = known_quotas(space)
    for quota in tight_quotas(space):
        more = min((units for pool in space.pools if (units := quota.units(pool.offer)) > 0), default=0.0)
        if more:
            raised = replace(quota, limit=quota.limit + more)
            quotas = tuple(raised if other is quota else other for other in known)
            yield f"{more:g} more {unit(quota)} of quota {quota.quota} in {quota.place}", under_quotas(space, quotas)


def _changes(job: Job, document: PlanDocument, catalog: Catalog) -> Iterator[_Change]:
    for name in sorted({name for resource in job.resources for name in resource.accelerators}):
        more = _node_devices(job, document, catalog, name)
        resources = tuple(
            resource.model_copy(
                update={"accelerators": {**resource.accelerators, name: resource.accelerators[name] + more}}
            )
            if name in resource.accelerators
            else resource
            for resource in job.resources
        )
        yield _Change(f"{more} more {name} per zone", job.model_copy(update={"resources": resources}), name)
    for name, words in _LIMITS.items():
        value = getattr(job.constraints, name)
        if value is not None:
            looser = value / LOOSER if name == "min_throughput" else value * LOOSER
            constraints = job.constraints.model_copy(update={name: looser})
            yield _Change(words, job.model_copy(update={"constraints": constraints}))
    if job.constraints.max_nodes is not None:
        constraints = job.constraints.model_copy(update={"max_nodes": job.constraints.max_nodes + 1})
        yield _Change("one more node", job.model_copy(update={"constraints": constraints}))
    zone = _next_zone(job, catalog)
    if zone is not None:
        number, name = zone
        resource = job.resources[number]
        wider = resource.model_copy(update={"zones": (*resource.zones, name)})
        resources = (*job.resources[:number], wider, *job.resources[number + 1 :])
        yield _Change(f"zone {name} as well", job.model_copy(update={"resources": resources}))


def _node_devices(job: Job, document: PlanDocument, catalog: Catalog, name: str) -> int:
    """Return the devices of an accelerator's smallest node, among those of the plan or else those for sale."""
    used = [offer.accelerator_count for offer in document.inputs.offers if offer.accelerator == name]
    if used:
        return min(used)
    sold = [
        offer.accelerator_count
        for resource in job.resources
        if name in resource.accelerators
        for offer in catalog.offers(provider=resource.provider, zones=resource.zones, accelerators=(name,))
    ]
    return min(sold, default=1)


def _next_zone(job: Job, catalog: Catalog) -> tuple[int, str] | None:
    """Return the job's entry to widen and its first new zone; zones in the job's regions come first."""
    for number, resource in enumerate(job.resources):
        regions = {catalog.region_of(zone) for zone in resource.zones}
        sold = {
            offer.zone: offer.region
            for offer in catalog.offers(
                provider=resource.provider, accelerators=tuple(resource.accelerators), markets=resource.markets
            )
            if offer.zone not in resource.zones
        }
        if sold:
            return number, min(sold, key=lambda zone: (sold[zone] not in regions, zone))
    return None


def _better(job: Job, one: float | None, other: float | None) -> float | None:
    """Return the better of two values of the goal, or the only one."""
    known = [value for value in (one, other) if value is not None]
    return (max if job.goal is Goal.MAXIMIZE_THROUGHPUT else min)(known) if known else None


def _own(job: Job, document: PlanDocument) -> float | None:
    """Return the goal's value of the explained plan, which may serve another goal."""
    if document.prediction is None or document.cost is None:
        return None
    iteration_s = document.prediction.iteration_s_replay
    if job.goal is Goal.MAXIMIZE_THROUGHPUT:
        return 1.0 / iteration_s
    values = {
        Figure.ITERATION_S: iteration_s,
        Figure.DURATION_S: document.prediction.duration_s,
        Figure.TOTAL_USD: document.cost.total_usd,
        Figure.USD_PER_ITERATION: document.cost.usd_per_iteration,
    }
    return values[target_of(job).goal]


def _gain(change: str, job: Job, old: float | None, new: float | None, own: float | None = None) -> Gain:
    """Return what a change brings.

    old: the goal's value of the best plan known without the change. If that is not the explained plan, whose value is
    `own`, the text names both.
    """
    named = objective_unit(job)
    if new is None:
        text = "still no plan"
    elif old is None:
        text = f"a plan with {new:.4g} {named}".rstrip()
    else:
        larger_is_better = job.goal is Goal.MAXIMIZE_THROUGHPUT
        share = new / old - 1.0 if larger_is_better else 1.0 - new / old
        other = own is not None and abs(own / old - 1.0) >= LEAST_GAIN
        base = f"{old:.4g} of the best plan without it (this plan: {own:.4g})" if other else f"{old:.4g}"
        text = "nothing" if share < LEAST_GAIN else f"{new:.4g} {named} instead of {base}: {100 * share:.1f} % better"
        new = old if share < LEAST_GAIN else new
    return Gain(change=change, before=old, after=new, unit=named, text=text)
