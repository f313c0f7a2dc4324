"""`make chaos`: seeded kills of ranks and agents and a store that goes away, 200 by default; writes results/chaos.md.

Each storm is a process of its own with agents and ranks of its own. All are run at one commit: storms that have passed
there are kept in the state file and not run again, so that an interrupted run continues; those of other commits
don't count. After `--minutes` no further storm begins; the results say how many kills there were until then.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
from commit import commit as commit_of_checkout  # noqa: E402
from commit import same_files  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "chaos.md"
STATE = ROOT / "build" / "chaos.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--kills-per-seed", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="storms at once")
    parser.add_argument("--limit-s", type=float, default=900.0, help="after which a storm counts as a hang")
    parser.add_argument("--minutes", type=float, default=90.0, help="after which no further storm begins")
    parser.add_argument("--fresh", action="store_true", help="forget storms that have passed")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        return _one(options.one, options.kills_per_seed)
    STATE.parent.mkdir(exist_ok=True)
    if options.fresh:
        STATE.unlink(missing_ok=True)
    options.commit, options.until = commit_of_checkout(), time.monotonic() + 60.0 * options.minutes
    passed = {row["seed"]: row for row in _rows(options)}
    seeds = range(options.first_seed, options.first_seed + -(-options.kills // options.kills_per_seed))
    left = [seed for seed in seeds if seed not in passed]
    with ThreadPoolExecutor(options.jobs) as pool:
        failed = [
            seed for seed, fine in zip(left, pool.map(lambda s: _storm(s, options), left), strict=True) if not fine
        ]
    if failed:
        print(f"{len(failed)} storms failed: {failed}", file=sys.stderr)
        return 1
    if commit_of_checkout() != options.commit:
        print(f"the checkout is {options.commit} no longer: what was tried is unknown", file=sys.stderr)
        return 1
    rows = _record(options)
    print(f"{sum(len(row['harms']) for row in rows)} kills in {len(rows)} storms, none wrong; {RESULTS}")
    return 0


def _storm(seed: int, options: argparse.Namespace) -> bool:
    """Run one storm in a process of its own, unless time is over; keep what came of it."""
    if time.monotonic() > options.until:
        return True
    command = [sys.executable, __file__, "--one", str(seed), "--kills-per-seed", str(options.kills_per_seed)]
    environ = {**os.environ, "SAILOR_CHAOS_LIMIT_S": str(options.limit_s), "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        with STATE.open("a") as state:
            row = {**json.loads(done.stdout.splitlines()[-1]), "commit": options.commit}
            state.write(json.dumps(row) + "\n")
        _record(options)
        print(f"seed {seed}: passed", flush=True)
        return True
    print(f"seed {seed}: FAILED\n{done.stdout}{done.stderr}", file=sys.stderr, flush=True)
    return False


def _one(seed: int, kills: int) -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "runtime")]
    from factories.kills import storm

    with tempfile.TemporaryDirectory(prefix="sailor-chaos-") as folder, storm(seed, Path(folder), kills, print) as one:
        print(json.dumps(asdict(one.run())))
    return 0


def _record(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Write down the storms that have passed so far, and return them."""
    storms = -(-options.kills // options.kills_per_seed)
    seeds = range(options.first_seed, options.first_seed + storms)
    rows = [row for row in _rows(options) if row["seed"] in seeds]
    if rows:
        _write(rows, options.commit, wanted=storms * options.kills_per_seed)
    return rows


def _rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the storms that have passed at this commit."""
    rows = [json.loads(line) for line in STATE.read_text().splitlines()] if STATE.exists() else []
    mine = [row for row in rows if same_files(row.get("commit", ""), options.commit)]
    return [row for row in mine if len(row["harms"]) == options.kills_per_seed]


def _write(rows: list[dict[str, Any]], commit: str, *, wanted: int) -> None:
    harms = Counter(harm for row in rows for harm in row["harms"])
    refusals = Counter(reason.split(":")[0] for row in rows for reason in row["refusals"])
    stores = Counter(row["store"] for row in rows)
    lines = [
        "# Kills of ranks, agents and stores",
        "",
        f"`make chaos`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} processor cores shared with other work, "
        f"Python {platform.python_version()}; at {commit}.",
        "",
        f"{harms.total()} of {wanted} kills, in {len(rows)} storms, {sum(row['generations'] for row in rows)} "
        "generations. Each generation draws a new random plan of 1 to 3 ranks on one or two agents: tensor parallelism "
        "1 to 3, uneven depths, with and without ZeRO-1; AdamW in float64, dropout 0.1, clipping. Every storm ended at "
        "the last step with the weights of an uninterrupted run in one process; no process was left, and none came to "
        "its time limit.",
        "",
        "| what happened | times |",
        "|---|---|",
        *(f"| {harm} | {count} |" for harm, count in sorted(harms.items())),
        "",
        f"Largest difference of any weight: {max(row['difference'] for row in rows):.1e} (tolerance 1e-10). "
        f"Checkpoints lay in {', '.join(f'a {name} in {count} storms' for name, count in sorted(stores.items()))}; "
        "the bucket is a stand-in for Google Cloud Storage on this machine.",
        "",
        f"Clear stops with the store out of reach: {refusals.total()}. "
        f"Longest storm: {max(row['seconds'] for row in rows):.0f} s.",
        "",
    ]
    RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
