"""Predicts the throughput of published runs and says how far off it is, by source and in the order of layouts."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from clusters import scenario_of
from published import PublishedRun, Unread
from scipy.stats import spearmanr

from sailor_cloud.errors import SailorError
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Plan
from sailor_cloud.simulator import Scenario
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.iteration import run_iteration
from sailor_cloud.simulator.timing.uncertainty import uncertainty
from sailor_cloud.workload import ComputeProfiles, parameter_count

# Sources with fewer rows count as one; so many rows make a group of layouts, and so many a large one.
FEWEST_ROWS = 5
LARGE_GROUP = 10
POOLED = "sources under five rows, pooled"
# Rows of one source below this share of an H100's peak show its network and launches, so they are kept apart.
_STARVED_SOURCE, _STARVED_SHARE, _PEAK_FLOPS = "HF ultrascale-playbook", 0.1, 989.4e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run that can be predicted, laid out."""

    run: PublishedRun
    plan: Plan
    scenario: Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One run with its predicted tokens per second and device, and what the prediction says of its error."""

    run: PublishedRun
    tokens_per_s: float
    error_p50: float
    error_p90: float

    @property
    def error(self) -> float:
        assert self.run.tokens_per_s_per_device is not None
        return self.tokens_per_s / self.run.tokens_per_s_per_device - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How the predicted order of a group of layouts agrees with the measured one."""

    group: str
    rows: int
    spearman: float


def in_bars(run: PublishedRun) -> bool:
    """Whether a run counts: trusted, in half precision, with a measured speed."""
    return not not_in_bars(run)


def not_in_bars(run: PublishedRun) -> str:
    """Return why a run does not count, nothing for one that does."""
    if run.precision not in (Precision.BF16, Precision.FP16):
        return f"precision {run.precision} is not one of bf16 and fp16"
    if run.trust not in ("high", "medium"):
        return f"trust is {run.trust or 'not stated'}, not high or medium"
    return "" if run.tokens_per_s_per_device is not None else "tokens_per_s_per_gpu is not stated"


def starved(run: PublishedRun) -> bool:
    """Whether a run is one of the playbook's under 10 % of the peak."""
    decoder, rate = run.decoder, run.tokens_per_s_per_device
    if rate is None or not run.source.startswith(_STARVED_SOURCE):
        return False
    # Weights of the blocks and of the head, and attention without the causal half.
    tied = 0 if decoder.tied_head else decoder.vocab_size * decoder.hidden_size
    flops = 6.0 * (parameter_count(decoder) - tied)
    flops += 6.0 * decoder.blocks * decoder.hidden_size * run.sequence_length
    return rate * flops / _PEAK_FLOPS < _STARVED_SHARE


def cases_of(runs: Sequence[PublishedRun], profiles: ComputeProfiles) -> tuple[tuple[Case, ...], tuple[Unread, ...]]:
    """Lay out every run; also return those that can't be, with the reason."""
    cases, unread = [], []
    for run in runs:
        try:
            plan, scenario = scenario_of(run, profiles)
            lay_out(plan, scenario)
        except SailorError as error:
            unread.append(Unread(id=run.id, source=run.source_name, reason=str(error)))
        else:
            cases.append(Case(run=run, plan=plan, scenario=scenario))
    return tuple(cases), tuple(unread)


def predict(case: Case, **changes: Any) -> Timed:
    """Simulate a run; `changes` replace parts of its scenario."""
    layout = lay_out(case.plan, dataclasses.replace(case.scenario, **changes) if changes else case.scenario)
    iteration = run_iteration(layout)
    likely = uncertainty(layout, iteration).distribution
    tokens = case.plan.global_batch_size * case.run.sequence_length / case.run.devices
    return Timed(
        run=case.run,
        tokens_per_s=tokens / iteration.replay_s,
        error_p50=likely.p50,
        error_p90=likely.p90,
    )


def sources(runs: Sequence[PublishedRun]) -> list[str]:
    """Return the name under which each run's source is reported: small sources are one."""
    counts = Counter(run.source_name for run in runs)
    return [run.source_name if counts[run.source_name] >= FEWEST_ROWS else POOLED for run in runs]


def orders(timed: Sequence[Timed]) -> list[Order]:
    """Return the rank correlation of each group of layouts of one model, on one cluster, in one batch.

    Runs of a single layout have no order. Equal figures for all layouts count as no correlation.
    """
    groups: dict[tuple[object, ...], list[Timed]] = defaultdict(list)
    for each in timed:
        run = each.run
        key = (
            run.source_name,
            run.decoder.name,
            run.accelerator,
            run.devices,
            run.sequence_length,
            run.precision.value,
            run.global_batch_size,
        )
        groups[key].append(each)
    return [
        Order(
            group=", ".join(map(str, key)),
            rows=len(rows),
            spearman=_correlation(
                [row.run.tokens_per_s_per_device or 0.0 for row in rows], [row.tokens_per_s for row in rows]
            ),
        )
        for key, rows in groups.items()
        if len(rows) >= FEWEST_ROWS and len({row.run.layout for row in rows}) > 1
    ]


def _correlation(measured: Sequence[float], predicted: Sequence[float]) -> float:
    if len(set(measured)) == 1 or len(set(predicted)) == 1:
        return 0.0
    return float(spearmanr(measured, predicted)[0])


def summary(timed: Sequence[Timed]) -> dict[str, float]:
    """Return rows, mean and median absolute error, bias, and the shares inside p50 and p90."""
    errors = np.array([each.error for each in timed])
    return {
        "rows": len(timed),
        "mean": float(np.abs(errors).mean()),
        "median": float(np.median(np.abs(errors))),
        "bias": float(errors.mean()),
        "inside_p50": float(np.mean([abs(each.error) <= each.error_p50 for each in timed])),
        "inside_p90": float(np.mean([abs(each.error) <= each.error_p90 for each in timed])),
    }


def table(timed: Sequence[Timed], named: Callable[[Sequence[PublishedRun]], list[str]] = sources) -> dict[str, Any]:
    """Return the figures of each source, or group of another name, over all of them, and of the starved rows."""
    counted = [each for each in timed if not starved(each.run)]
    grouped: dict[str, list[Timed]] = defaultdict(list)
    for name, each in zip(named([each.run for each in counted]), counted, strict=True):
        grouped[name].append(each)
    groups = {name: summary(rows) for name, rows in sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))}
    found = orders(counted)
    low = [each for each in timed if starved(each.run)]
    over = list(groups.values())
    return {
        "groups": groups,
        "mean_of_means": float(np.mean([each["mean"] for each in over])),
        "mean_bias": float(np.mean([each["bias"] for each in over])),
        "mean_absolute_bias": float(np.mean([abs(each["bias"]) for each in over])),
        "spearman": float(np.mean([each.spearman for each in found])) if found else None,
        "spearman_large": _mean([each.spearman for each in found if each.rows >= LARGE_GROUP]),
        "orders": [dataclasses.asdict(each) for each in found],
        "inside_p50": float(np.mean([abs(each.error) <= each.error_p50 for each in counted])),
        "inside_p90": float(np.mean([abs(each.error) <= each.error_p90 for each in counted])),
        "starved": summary(low) if low else None,
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def report(title: str, figures: Mapping[str, Any]) -> list[str]:
    """Return a table as lines of Markdown."""
    lines = [
        f"## {title}",
        "",
        "| tokens/s | rows | mean error | median | bias | inside p50 | inside p90 |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = dict(figures["groups"])
    if figures["starved"] is not None:
        rows["apart: playbook under 10 % of the peak"] = figures["starved"]
    for name, of in rows.items():
        lines.append(
            f"| {name} | {of['rows']} | {of['mean']:.1%} | {of['median']:.1%} | {of['bias']:+.1%} "
            f"| {of['inside_p50']:.0%} | {of['inside_p90']:.0%} |"
        )
    lines += [
        "",
        f"Mean of the groups: error {figures['mean_of_means']:.1%}, bias {figures['mean_bias']:+.1%}, absolute bias "
        f"{figures['mean_absolute_bias']:.1%}; of all rows {figures['inside_p50']:.0%} inside p50 and "
        f"{figures['inside_p90']:.0%} inside p90.",
    ]
    if figures["orders"]:
        large = figures["spearman_large"]
        lines.append(
            f"Order of layouts, mean Spearman correlation: {figures['spearman']:.2f} over {len(figures['orders'])} "
            f"groups of {FEWEST_ROWS} rows or more"
            + ("." if large is None else f", {large:.2f} over those of {LARGE_GROUP} or more.")
        )
    return [*lines, ""]
