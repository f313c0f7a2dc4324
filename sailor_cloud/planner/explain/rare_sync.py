"""What a plan over several zones would save if its zones met seldom (`training.sync_every`); only ever shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from sailor_cloud.model.document import Alternative
from sailor_cloud.model.plan import Plan, Recompute
from sailor_cloud.simulator import Evaluation, Scenario, evaluate, islands
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.units import SECONDS_PER_HOUR

# DiLoCo's main experiments take 500 steps (arXiv 2311.08105); this is the more careful choice.
_EVERY = 100
# The share of a plan's cost from which on a saving weighs.
_LEAST_SHARE = 0.02


def apart(scenario: Scenario, plans: Sequence[Plan]) -> tuple[Alternative, ...]:
    """Return the first of some plans that is clearly cheaper with zones that meet every so many steps."""
    job = scenario.job
    if job.training.sync_every is not None or not scenario.engine.zone_by_zone:
        return ()
    training = job.training.model_copy(update={"sync_every": _EVERY})
    seldom = replace(scenario, job=job.model_copy(update={"training": training}))
    for plan in plans:
        # ZeRO-2 and 3 sum gradients in every step.
        if plan.zero_stage >= 2 or len(plan.pipelines) < 2 or len(islands(lay_out(plan, seldom))) < 2:
            continue
        there, then = _fitted(plan, seldom)
        now = evaluate(plan, scenario)
        before, after = (
            each.cost.usd_per_hour * each.prediction.iteration_s_replay / SECONDS_PER_HOUR for each in (now, then)
        )
        if not then.fits or after >= before * (1.0 - _LEAST_SHARE):
            continue
        whole = (now.cost.total_usd, then.cost.total_usd)
        saved = None if whole[0] is None or whole[1] is None else whole[0] - whole[1]
        if saved is not None and round(saved, 2) <= 0.0:
            continue
        told = f"saves {saved:,.2f} USD" if saved is not None else f"saves {before - after:,.4f} USD/iteration"
        return (
            Alternative(
                label=f"sync_every: {_EVERY} ({told}; converges differently)",
                plan=there,
                iteration_s=then.prediction.iteration_s_replay,
                throughput_iterations_per_s=then.prediction.throughput_iterations_per_s,
                usd_per_hour=then.cost.usd_per_hour,
                total_usd=then.cost.total_usd,
            ),
        )
    return ()


def _fitted(plan: Plan, scenario: Scenario) -> tuple[Plan, Evaluation]:
    """Return a plan whose stages compute again what they must to fit, since islands keep more, and its figures.

    Where that is not enough, the plan still does not fit.
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
