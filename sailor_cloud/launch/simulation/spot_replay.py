"""Policies for a deadline on recorded spot availability, side by side, from many starts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.simulation.spot_market import POLICIES, SpotResult, least_usd, play
from sailor_cloud.launch.simulation.spot_traces import ZoneTrace, availability
from sailor_cloud.planner.spot_timing import TICKS_PER_CHANGE_OVER, SpotTask
from sailor_cloud.run.progress import SpotReplayed
from sailor_cloud.units import duration_text

OPTIMUM = "offline optimum"


def replay_spot(
    task: SpotTask,
    traces: Sequence[ZoneTrace],
    *,
    nodes: int,
    deadlines_s: Sequence[float],
    every_s: float,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[SpotReplayed, ...]:
    """Run each policy under each deadline from a start every `every_s` of the traces; only complete windows count.

    Raises RequestError if a deadline is too short for the work on demand, or the traces are shorter than it.
    """
    up = availability(tuple(traces), nodes=nodes, tick_s=task.tick_s)
    found: list[SpotReplayed] = []
    for done, deadline_s in enumerate(deadlines_s):
        progress(done, len(deadlines_s))
        timed = replace(task, deadline_s=deadline_s)
        if timed.ticks < timed.work_ticks + TICKS_PER_CHANGE_OVER:
            needed = duration_text(task.work_s + task.change_over_s)
            raise RequestError(
                f"deadline {duration_text(deadline_s)} is too short: on demand alone the job needs {needed}"
            )
        begins = range(0, len(up) - timed.ticks + 1, max(1, round(every_s / task.tick_s)))
        if not begins:
            raise RequestError(
                f"the traces last {duration_text(len(up) * task.tick_s)}, "
                f"less than deadline {duration_text(deadline_s)}"
            )
        windows = [up[begin : begin + timed.ticks] for begin in begins]
        for name, policy in POLICIES.items():
            results = [play(policy(timed), timed, window) for window in windows]
            found.append(_row(name, timed, results))
        least = statistics.mean(least_usd(timed, window) for window in windows)
        found.append(
            SpotReplayed(
                deadline_s=deadline_s,
                policy=OPTIMUM,
                starts=len(windows),
                usd=least,
                share=least / timed.all_on_demand_usd,
                missed=0,
                lost_s=None,
                preemptions=None,
            )
        )
    return tuple(found)


def _row(policy: str, task: SpotTask, results: Sequence[SpotResult]) -> SpotReplayed:
    usd = statistics.mean(result.usd for result in results)
    return SpotReplayed(
        deadline_s=task.deadline_s,
        policy=policy,
        starts=len(results),
        usd=usd,
        share=usd / task.all_on_demand_usd,
        missed=sum(not result.finished for result in results),
        lost_s=statistics.mean(result.lost_s for result in results),
        preemptions=statistics.mean(result.preemptions for result in results),
    )
