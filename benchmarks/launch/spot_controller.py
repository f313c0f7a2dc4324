"""The controller on recorded spot availability under a deadline: with our policy, and with its plain rule instead.

Usage: python benchmarks/launch/spot_controller.py ZONE.json … [--deadline HOURS …] [--start HOUR …]

48 h of work on one node, spot at 0.3 of on-demand, which can always be had. The whole controller runs in simulated
time, with a look a minute; its search is a stand-in that knows one plan on each market. The plain rule has no policy:
it compares ways to go on by their price without any loss.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
from factories.quick_search import ON_DEMAND, PRICE, SPEED, QuickSearch, job, search
from sailor_cloud.launch.replanning.replan import Policy, Situation
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import OPTIONS, replay
from sailor_cloud.launch.simulation.spot_market import POLICIES, least_usd, play
from sailor_cloud.launch.simulation.spot_traces import availability, read_spot_traces
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Market
from sailor_cloud.planner.spot_timing import SpotTask
from sailor_cloud.run.progress import Replayed
from sailor_cloud.workload import decoder

WORK_H, HOUR, MINUTE = 48.0, 3600.0, 60.0
ZONE, NAME = "us-central1-a", "A100-40"
WEIGHS_SPOT = Situation.uses_spot_policy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("zones", nargs="+", type=Path)
    parser.add_argument("--deadline", nargs="+", type=float, default=[60.0, 92.0])
    parser.add_argument("--start", nargs="+", type=float, default=[100.0, 300.0])
    arguments = parser.parse_args()
    if missing := [path for path in arguments.zones if not path.is_file()]:
        print(f"SKIPPED: no trace {missing[0]}")
        return 0
    print("| trace | deadline | start | controller, policy | controller, plain rule | policy alone | optimum |")
    print("|---|---|---|---|---|---|---|")
    late = 0
    for path in arguments.zones:
        traces = read_spot_traces(path)
        for deadline_h in arguments.deadline:
            for start_h in arguments.start:
                up = availability(traces, nodes=16, tick_s=MINUTE)[int(start_h * 60) :, 0]
                task = SpotTask(
                    work_s=WORK_H * HOUR,
                    deadline_s=deadline_h * HOUR,
                    change_over_s=720.0,
                    spot_usd_per_hour=0.3,
                    on_demand_usd_per_hour=1.0,
                )
                ticks = availability(traces, nodes=16, tick_s=task.tick_s)[round(start_h * HOUR / task.tick_s) :]
                if len(ticks) < task.ticks:
                    continue
                ours, plain = controlled(up, deadline_h), controlled(up, deadline_h, policy=False)
                alone = play(POLICIES["bounded-wait"](task), task, ticks).usd
                late += ours.ending != "completed"
                shares = [one / task.all_on_demand_usd for one in (alone, least_usd(task, ticks[: task.ticks]))]
                cells = " | ".join([_cells(ours), _cells(plain), *(f"{share:.3f}" for share in shares)])
                print(
                    f"| {path.parent.name} {path.stem} | {deadline_h:.0f} h | {start_h:.0f} h | {cells} |", flush=True
                )
    return 1 if late else 0


def controlled(up: np.ndarray, deadline_h: float, *, policy: bool = True) -> Replayed:
    """Run the controller on one zone's availability, an entry a minute."""
    Situation.uses_spot_policy = WEIGHS_SPOT if policy else property(lambda situation: False)  # type: ignore[method-assign,assignment]
    moments = [0, *(int(at) for at in np.flatnonzero(np.diff(up.astype(int))) + 1)]
    counts = tuple(int(up[at]) for at in moments)
    trace = Trace(times_s=tuple(at * MINUTE for at in moments), devices={Place(ZONE, NAME): counts}, spot_only=True)
    wanted = _job(deadline_h, Market.SPOT, Market.ON_DEMAND)
    document = replace(search(_job(deadline_h, Market.SPOT)), job=wanted)
    options = replace(OPTIONS, poll_s=MINUTE, watch_s=MINUTE)
    return replay(
        document,
        trace,
        decoder=decoder(wanted.model),
        search=QuickSearch(),
        policy=Policy.BEST,
        options=options,
    )


def _job(deadline_h: float, *markets: Market) -> Job:
    base = job(budget_usd=1e6, deadline=deadline_h * HOUR)
    entry = base.resources[0].model_copy(update={"zones": (ZONE,), "accelerators": {NAME: 1}, "markets": markets})
    steps = round(WORK_H * HOUR / (SPEED[NAME] * base.training.global_batch_size + 0.5))
    training = base.training.model_copy(update={"steps": steps})
    return base.model_copy(update={"goal": Goal.MINIMIZE_COST, "resources": (entry,), "training": training})


def _cells(one: Replayed) -> str:
    share = one.usd / (ON_DEMAND * PRICE[NAME] * (WORK_H + 0.15))
    return f"{share:.3f} in {one.seconds / HOUR:.1f} h" + ("" if one.ending == "completed" else f", {one.ending}")


if __name__ == "__main__":
    sys.exit(main())
