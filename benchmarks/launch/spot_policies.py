"""Policies for a deadline on recorded spot availability: ours, Uniform Progress, greedy, and the offline optimum.

Usage: python benchmarks/launch/spot_policies.py [FOLDER] [--every HOURS] [-o FILE]

FOLDER holds traces as skypilot-org/spot-traces has them. 48 h of work on one set of nodes, spot at 0.3 of on-demand,
12 minutes per change-over. Exits with 1 where a deadline was missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from sailor_cloud.launch.simulation.spot_replay import OPTIMUM, replay_spot
from sailor_cloud.launch.simulation.spot_traces import ZoneTrace, read_spot_traces
from sailor_cloud.planner.spot_timing import SpotTask
from sailor_cloud.run.progress import SpotReplayed

WORK_H, DEADLINES_H, CHANGE_OVER_S, SPOT = 48.0, (52.0, 60.0, 70.0, 92.0), 720.0, 0.3
# The constants of our policy were chosen on the zones of this date, one by one.
CHOSEN_ON = "aws-02-15-2023"
OURS, UP, GREEDY = "bounded-wait", "uniform-progress", "greedy"
DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "reference" / "spot-traces" / "availability"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--every", type=float, default=48.0, help="hours between two starts (default 48)")
    parser.add_argument("-o", type=Path, help="write the tables here too")
    arguments = parser.parse_args()
    folders = sorted({file.parent for file in arguments.folder.rglob("*.json")})
    if not folders:
        print(f"SKIPPED: no traces under {arguments.folder}")
        return 0
    begun = time.monotonic()
    groups: dict[str, list[tuple[str, tuple[ZoneTrace, ...]]]] = {"one zone, left out": [], "one zone, chosen on": []}
    several = groups["several zones"] = []
    for folder in folders:
        zones = read_spot_traces(folder)
        name = "one zone, chosen on" if folder.name == CHOSEN_ON else "one zone, left out"
        groups[name] += [(f"{folder.name} {zone.zone}", (zone,)) for zone in zones]
        alike = tuple(zone for zone in zones if zone.zone.endswith("_1"))
        if len(alike) > 1:
            several.append((folder.name, alike))
    lines, missed = [], 0
    for group, sets in groups.items():
        lines += ["", f"## {group}", "", "| traces | deadline | starts | greedy | Uniform Progress | ours | optimum |"]
        lines[-1] += " ours / optimum | ours / Uniform Progress | missed | lost work, ours, h |"
        lines.append("|---|---|---|---|---|---|---|---|---|---|---|")
        sums: dict[float, list[dict[str, SpotReplayed]]] = {}
        for name, traces in sets:
            for deadline, row in _rows(traces, arguments.every).items():
                sums.setdefault(deadline, []).append(row)
                missed += sum(one.missed for one in row.values())
                lines.append(_line(name, deadline, [row]))
                print(lines[-1], flush=True)
        if len(sets) > 1:
            lines += [_line(f"mean of {len(sets)}", deadline, rows) for deadline, rows in sums.items()]
    lines += ["", f"{missed} deadlines missed. {time.monotonic() - begun:.0f} s."]
    print("\n".join(lines))
    if arguments.o:
        arguments.o.write_text("\n".join(lines[1:]) + "\n", encoding="utf-8")
    return 1 if missed else 0


def _rows(traces: tuple[ZoneTrace, ...], every_h: float) -> dict[float, dict[str, SpotReplayed]]:
    task = SpotTask(
        work_s=WORK_H * 3600,
        deadline_s=DEADLINES_H[0] * 3600,
        change_over_s=CHANGE_OVER_S,
        spot_usd_per_hour=SPOT,
        on_demand_usd_per_hour=1.0,
    )
    found: dict[float, dict[str, SpotReplayed]] = {}
    deadlines = [hours * 3600 for hours in DEADLINES_H]
    for row in replay_spot(task, traces, nodes=16, deadlines_s=deadlines, every_s=every_h * 3600):
        found.setdefault(row.deadline_s, {})[row.policy] = row
    return found


def _line(name: str, deadline_s: float, rows: list[dict[str, SpotReplayed]]) -> str:
    share = {policy: sum(row[policy].share for row in rows) / len(rows) for policy in rows[0]}
    starts = sum(row[OURS].starts for row in rows)
    missed = sum(one.missed for row in rows for one in row.values())
    lost = sum((row[OURS].lost_s or 0.0) for row in rows) / len(rows) / 3600
    costs = " | ".join(f"{share[policy]:.3f}" for policy in (GREEDY, UP, OURS, OPTIMUM))
    ratios = f"{share[OURS] / share[OPTIMUM]:.3f} | {share[OURS] / share[UP]:.3f}"
    return f"| {name} | {deadline_s / 3600:.0f} h | {starts} | {costs} | {ratios} | {missed} | {lost:.1f} |"


if __name__ == "__main__":
    sys.exit(main())
