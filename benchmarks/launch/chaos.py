"""Seeded storms over the whole controller in simulated time: is the budget kept, is anything left, is much lost?

    python benchmarks/launch/chaos.py [--seeds 100] [-o benchmarks/results/launch_chaos.md]

A storm is what `tests/factories/chaos.py` makes of a seed: capacity that comes and goes, stockouts, errors of the
cloud, controllers that are killed, slow nodes, and spot prices that move every hour.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from factories.chaos import Storm
from sailor_cloud.run.journal import read
from sailor_cloud.run.state import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one storm did to a run."""

    seed: int
    outcome: str
    budget_used: float
    preemptions: int
    refusals: int
    faults: int
    kills: int
    slow_nodes: int
    most_lost_s: float
    problems: tuple[str, ...]
    message: str


def weather(seed: int, root: Path) -> Row:
    storm = Storm(seed, root)
    receipt = storm.run()
    return Row(
        seed=seed,
        outcome=receipt.outcome,
        budget_used=receipt.spent_usd / storm.budget_usd,
        preemptions=storm.world.preemptions,
        refusals=storm.refusals,
        faults=storm.faults,
        kills=storm.kills,
        slow_nodes=storm.slow_nodes,
        most_lost_s=max((seconds for _, seconds in storm.world.lost_steps), default=0.0),
        problems=tuple(storm.problems()),
        message=fold(read(storm.folder.journal_file)).message if receipt.outcome == "failed" else "",
    )


def report(rows: list[Row], every_s: float, seconds: float) -> str:
    endings = Counter(row.outcome for row in rows)
    within = sum(row.most_lost_s <= every_s + 1e-6 for row in rows)
    worst = max(row.most_lost_s for row in rows)
    lines = [
        f"{len(rows)} storms in {seconds:.0f} s",
        "",
        "| promise | kept in |",
        "|---|---|",
        f"| ledger after teardown under the budget | {sum(row.budget_used <= 1 for row in rows)} of {len(rows)} |",
        f"| nothing left, all paid for, nothing else broken | {sum(not row.problems for row in rows)} of {len(rows)} |",
        f"| work lost per event at most one checkpoint interval ({every_s:.0f} s) | "
        f"{within} of {len(rows)}; most {worst:.0f} s |",
        "",
        "| what happened | in all | in storms |",
        "|---|---|---|",
    ]
    for name in ("preemptions", "refusals", "faults", "kills", "slow_nodes"):
        values = [getattr(row, name) for row in rows]
        lines.append(f"| {name.replace('_', ' ')} | {sum(values)} | {sum(value > 0 for value in values)} |")
    lines += ["", "| ending | storms | budget used, largest |", "|---|---|---|"]
    for ending, number in sorted(endings.items()):
        most = max(row.budget_used for row in rows if row.outcome == ending)
        lines.append(f"| {ending} | {number} | {100 * most:.1f} % |")
    for row in rows:
        lines += [f"- seed {row.seed}: {problem}" for problem in row.problems]
        if row.message:
            lines.append(f"- seed {row.seed} failed: {row.message}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows, begun = [], time.monotonic()
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as root:
            rows.append(weather(seed, Path(root)))
        print(rows[-1], file=sys.stderr, flush=True)
    text = report(rows, 600.0, time.monotonic() - begun)
    print(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
