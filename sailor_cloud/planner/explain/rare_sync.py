"""The saving of a plan over several zones by rare synchronization (`training.sync_every`); only for display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from operator import itemgetter

from sailor_cloud.catalog import providers
from sailor_cloud.model.document import Alternative
from sailor_cloud.model.offer import Provider
from sailor_cloud.model.plan import Plan, Recompute
from sailor_cloud.model.provider import CLUSTERS
from sailor_cloud.planner.evaluate.assess import Assessor, shapes_of
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement.choice import holds
from sailor_cloud.planner.space.draft import Draft, to_plan
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.space import Space, build
from sailor_cloud.simulator import Evaluation, Scenario, evaluate, islands
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.units import SECONDS_PER_HOUR, usd_difference_text, usd_text

# DiLoCo's main experiments use 500 steps (arXiv 2311.08105); this is a more cautious choice.
_EVERY = 100
# The least share of a plan's cost that counts as a saving.
_LEAST_SHARE = 0.02
# The number of plans on each cloud that are combined with those on another.
_OF_A_CLOUD = 3


def apart(scenario: Scenario, plans: Sequence[Plan]) -> tuple[Alternative, ...]:
    """Return the first plan on one cloud that is clearly cheaper if zones synchronize every `_EVERY` steps.

    It must also be cheaper than the first of `plans`, the chosen one.
    """
    rare = _with_rare_sync(scenario)
    if rare is None or not plans:
        return ()
    for plan in plans:
        if len({scenario.offer(node.offer).provider for node in plan.nodes}) > 1:
            continue
        # ZeRO-2 and 3 reduce gradients in every step.
        if plan.zero_stage >= 2 or len(plan.pipelines) < 2 or len(islands(lay_out(plan, rare))) < 2:
            continue
        there, then = _fitted(plan, rare)
        chosen, now = evaluate(plans[0], scenario), evaluate(plan, scenario)
        ours, before, after = (
            each.cost.usd_per_hour * each.prediction.iteration_s_replay / SECONDS_PER_HOUR
            for each in (chosen, now, then)
        )
        if not then.fits or after >= min(ours, before) * (1.0 - _LEAST_SHARE):
            continue
        whole = (chosen.cost.total_usd, then.cost.total_usd)
        saved = None if whole[0] is None or whole[1] is None else whole[0] - whole[1]
        if saved is not None and round(saved, 2) <= 0.0:
            continue
        gain = f"saves {usd_text(saved)} USD" if saved is not None else f"saves {usd_text(ours - after)} USD/iteration"
        return (_alternative(there, then, gain),)
    return ()


def over_clouds(space: Space, target: Target, chosen: Draft, drafts: Sequence[Draft]) -> tuple[Alternative, ...]:
    """Return the best plan on several clouds that beats one plan if zones synchronize rarely, and can be bought.

    It joins whole pipelines of known plans on one cloud, perhaps with smaller microbatches. With synchronization in
    every step, traffic between clouds costs more than it saves. Raises OutOfTimeError.
    """
    rare, goal, job = _with_rare_sync(space.scenario), target.goal, space.scenario.job
    clouds = {space.clouds_of([number]) for number in range(len(space.pools))}
    clouds = {each for each in clouds if all(_is_a_cloud(name) for name in each)}
    if rare is None or len(clouds) < 2 or rare.job.one_cloud_reason is not None:
        return ()
    there, _ = build(rare, space.candidates)
    assessors = {stage: Assessor(there.at(stage), target) for stage in (0, 1)}
    alone = []
    for cloud in sorted(clouds, key=sorted):
        space.known.deadline.check()
        alone.append(_on_one_cloud(there, cloud, drafts, assessors))
    now = evaluate(to_plan(space, chosen), space.scenario)
    found = []
    for together in product(*alone):
        space.known.deadline.check()
        stage = max(draft.zero_stage for draft in together)
        joined = assessors[stage].draft([shape for draft in together for shape in shapes_of(draft)])
        if joined is None:
            continue
        plan = to_plan(there.at(stage), joined)
        evaluation = evaluate(plan, rare)
        figures = {figure: float(value) for figure, value in replayed(joined, evaluation).items()}
        if evaluation.fits and holds(target, figures) and figures[goal] < float(replayed(chosen, now)[goal]):
            found.append((figures[goal], joined.order(), plan, evaluation))
    if not found:
        return ()
    _, _, plan, best = min(found, key=itemgetter(0, 1))
    gain = _against(best, now)
    if not job.checkpoint.to_bucket:
        gain += "; needs a bucket in checkpoint.to"
    where = " and ".join(sorted({space.scenario.offers[node.offer].provider for node in plan.nodes}))
    return (_alternative(plan, best, gain, where),)


def _against(found: Evaluation, now: Evaluation) -> str:
    """Return by how much one plan takes less time and money than another."""
    share = found.prediction.iteration_s_replay / now.prediction.iteration_s_replay - 1.0
    time = f"{abs(share):.0%} {'more' if share > 0.0 else 'less'} time".replace("%", " %")
    then, before = found.cost.total_usd, now.cost.total_usd
    if then is not None and before is not None:
        return f"{time}, {usd_difference_text(then, before)}"
    then, before = found.cost.usd_per_iteration, now.cost.usd_per_iteration
    assert then is not None, "a plan for a model has iterations"
    assert before is not None
    return f"{time}, {usd_difference_text(then, before)} per iteration"


def _alternative(plan: Plan, found: Evaluation, gain: str, where: str = "") -> Alternative:
    return Alternative(
        label=f"sync_every: {_EVERY}{where and f' over {where}'} ({gain}; converges differently)",
        plan=plan,
        iteration_s=found.prediction.iteration_s_replay,
        throughput_iterations_per_s=found.prediction.throughput_iterations_per_s,
        usd_per_hour=found.cost.usd_per_hour,
        total_usd=found.cost.total_usd,
        duration_s=found.prediction.duration_s,
    )


def _is_a_cloud(provider: str) -> bool:
    return provider not in CLUSTERS and not providers.of(Provider(provider)).on_this_machine


def _on_one_cloud(
    space: Space, cloud: frozenset[str], drafts: Sequence[Draft], assessors: Mapping[int, Assessor]
) -> list[Draft]:
    """Return the fastest drafts on a cloud that fit in a space, one for each number of pipelines and stages."""
    kinds: dict[tuple[int, ...], Draft] = {}
    for draft in sorted(drafts, key=lambda draft: (draft.foreseen[Figure.ITERATION_S], draft.order())):
        if draft.zero_stage < 2 and space.clouds_of(draft.pools) == cloud:
            kinds.setdefault(tuple(sorted(len(part.slots) for part in draft.pipelines)), draft)
    found = []
    for draft in list(kinds.values())[:_OF_A_CLOUD]:
        for shrink, stage in product((1, 2, 4), (0, 1)):
            shapes = [x._replace(microbatch_size=max(1, x.microbatch_size // shrink)) for x in shapes_of(draft)]
            fitting = assessors[stage].draft(shapes)
            if fitting is not None:
                found.append(replace(fitting, zero_stage=stage))
    found.sort(key=lambda draft: (draft.figures[Figure.ITERATION_S], draft.order()))
    return found[:_OF_A_CLOUD]


def _with_rare_sync(scenario: Scenario) -> Scenario | None:
    """Return the scenario with rare synchronization; None if it has it already, or if its engine has no zones."""
    job = scenario.job
    if job.run is not None or job.training.sync_every is not None or not scenario.engine.zone_by_zone:
        return None
    training = job.training.model_copy(update={"sync_every": _EVERY})
    return replace(scenario, job=job.model_copy(update={"training": training}))


def _fitted(plan: Plan, scenario: Scenario) -> tuple[Plan, Evaluation]:
    """Return a plan with the recomputation that its stages need to fit, and its figures.

    Islands need more memory. If recomputation is not enough, the plan still does not fit.
    """
    more = dict(pairwise(Recompute))
    while True:
        found = evaluate(plan, scenario)
        over = {(each.pipeline, each.stage) for each in found.prediction.memory if each.total_bytes > each.limit_bytes}
        if not over or any(plan.pipelines[p].stages[s].recompute not in more for p, s in over):
            return plan, found
        pipelines = []
        for p, pipeline in enumerate(plan.pipelines):
            stages = (
                replace(x, recompute=more[x.recompute]) if (p, s) in over else x for s, x in enumerate(pipeline.stages)
            )
            pipelines.append(replace(pipeline, stages=tuple(stages)))
        plan = replace(plan, pipelines=tuple(pipelines))
