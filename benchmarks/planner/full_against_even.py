"""Compares the best plan of the whole space with the best one of even batches, both by our simulator.

Usage: python benchmarks/planner/full_against_even.py [-o FILE]. Each search is a process of its own, cold. The value is
the replay's iterations per second; the ratio is above 1 where the whole space is better. Jobs of the artifact's sizes
run in fp32 on demand, as the artifact's do; their limits on money are 90, 75 and 60 % of what an iteration of the best
plan without a limit costs under the replay, where that can be kept.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from time_and_gap import Case, header, measure

EXAMPLE = "gcp-a100-v100.yaml"
NEAR = ["us-central1-a", "us-central1-b"]
FIVE = [*NEAR, "us-central1-c", "us-central1-f", "us-west1-b"]
FAR = ["us-central1-a", "us-west1-b"]


def _case(name: str, zones: list[str], accelerators: dict[str, int], **changes: Any) -> Case:
    fixed = {"resources.0.zones": zones, "resources.0.accelerators": accelerators}
    return Case(name=name, example=EXAMPLE, changes={**fixed, **changes})


def _artifact(zones: list[str], accelerators: dict[str, int]) -> Case:
    devices = " + ".join(f"{count} {name.split('-')[0]}" for name, count in accelerators.items())
    return _case(
        f"{len(zones)} zone{'s' if len(zones) > 1 else ''} x ({devices}), fp32",
        zones,
        accelerators,
        constraints={},
        **{"training.precision": "fp32", "resources.0.markets": ["on-demand"]},
    )


SMALL, MIDDLE, LARGE = ({"A100-40": a, "V100-16": v} for a, v in ((32, 96), (80, 240), (128, 128)))

# Name, and whether it is one of the mixed and geo-distributed cases or of those where a budget binds.
CASES = (
    ("mixed", _case("1 zone x (8 A100 + 32 V100)", NEAR[:1], {"A100-40": 8, "V100-16": 32}, constraints={})),
    ("mixed", _case("1 zone x (16 A100 + 64 V100)", NEAR[:1], {"A100-40": 16, "V100-16": 64}, constraints={})),
    ("mixed", _case("1 zone x (4 A100 + 16 V100)", NEAR[:1], {"A100-40": 4, "V100-16": 16}, constraints={})),
    ("mixed", _case("2 zones x (8 A100 + 32 V100)", NEAR, {"A100-40": 8, "V100-16": 32}, constraints={})),
    ("mixed", _case("2 regions x (4 A100 + 16 V100)", FAR, {"A100-40": 4, "V100-16": 16}, constraints={})),
    (
        "budget",
        _case(
            "2 zones x (8 A100 + 32 V100), 120 USD",
            NEAR,
            {"A100-40": 8, "V100-16": 32},
            constraints={"budget_usd": 120, "deadline": "24h"},
        ),
    ),
    (
        "budget",
        _case(
            "1 zone x (4 A100 + 32 V100), 90 USD",
            NEAR[:1],
            {"A100-40": 4, "V100-16": 32},
            constraints={"budget_usd": 90},
        ),
    ),
    ("mixed", _artifact(NEAR[:1], SMALL)),
    ("mixed", _artifact(NEAR[:1], MIDDLE)),
    ("mixed", _artifact(NEAR, LARGE)),
    ("mixed", _artifact(NEAR[:1], {"A100-40": 128, "V100-16": 384})),
    ("mixed", _artifact(NEAR[:1], {"A100-40": 512, "V100-16": 512})),
    *(("mixed", _artifact(FIVE, {"A100-40": count})) for count in (32, 80, 128)),
)

# Shares of the cost of an iteration without a limit, and the jobs that are limited so.
SHARES = (0.9, 0.75, 0.6)
LIMITED = (_artifact(NEAR[:1], SMALL), _artifact(NEAR[:1], MIDDLE), _artifact(NEAR, LARGE))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    rows: list[str] = []
    ratios: dict[str, list[float]] = {}
    spent: dict[str, float] = {}
    cases = [*CASES, *(("budget", (case, share)) for case in LIMITED for share in SHARES)]
    for sort, wanted in cases:
        case = wanted if isinstance(wanted, Case) else _limited(*wanted, spent)
        whole, even = measure(case), measure(case, "--restrict", "even-batches")
        fast, slow = (each.document["prediction"] for each in (whole, even))
        if fast is not None:
            spent[case.name] = whole.document["cost"]["usd_per_iteration"]
        if fast is None or slow is None:
            rows.append(f"| {case.name} | {sort} | infeasible | | | | |")
            continue
        values = [each["throughput_iterations_per_s"] for each in (fast, slow)]
        ratios.setdefault(sort, []).append(values[0] / values[1])
        costs = [each.document["cost"]["total_usd"] for each in (whole, even)]
        rows.append(
            f"| {case.name} | {sort} | {values[0]:.4f} | {costs[0]:.1f} | {values[1]:.4f} | {costs[1]:.1f} | "
            f"{values[0] / values[1]:.3f} | {whole.cpu_s:.1f} | {even.cpu_s:.1f} |"
        )
    columns = "| job | sort | whole, iterations/s | USD | even, iterations/s | USD | ratio | CPU s | CPU s of even |"
    text = "\n".join([header(), columns, "|---|---|---|---|---|---|---|---|---|", *rows, "", _summary(ratios), ""])
    if chosen.output is None:
        sys.stdout.write(text)
    else:
        chosen.output.write_text(text)


def _limited(case: Case, share: float, spent: dict[str, float]) -> Case:
    """Return a job whose iterations cost a share of what they do without a limit."""
    usd = round(share * spent[case.name], 3)
    changes = {**case.changes, "constraints": {"max_usd_per_iteration": usd}}
    return replace(case, name=f"{case.name}, {share:.0%}: {usd:g} USD/iteration", changes=changes)


def _summary(ratios: dict[str, list[float]]) -> str:
    wanted = {"mixed": 1.01, "budget": 1.05}
    lines = []
    for sort, found in ratios.items():
        mean = math.exp(sum(math.log(each) for each in found) / len(found))
        verdict = "reached" if mean >= wanted[sort] and min(found) >= 1.0 - 1e-9 else "MISSED"
        lines.append(f"- {sort}: geometric mean {mean:.3f}, least {min(found):.3f}; aim {wanted[sort]}: {verdict}.")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
