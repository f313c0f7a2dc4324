"""Predicts published runs of sources from which nothing was fitted or calibrated, and says how far off it is.

python benchmarks/simulator_accuracy/unseen.py [--runs FILE] [--results FILE]

unseen_runs.csv has the columns of published_throughput.csv and `address`, `virtual_stages` (ranges of layers per stage
of Megatron's interleaved schedule), `shard_devices` (the devices that share one copy under hybrid sharding),
`eager_script` (1: modules of torch in a small script of the source's own), `first_error` (of the prediction made when
the row was found) and `assumed` (what the source leaves open). No constant of the simulator may come from these rows.
Runs with virtual stages are also predicted in 1F1B, without them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from commit import measured_on, write
from published import PublishedRun, read_published
from published_time import Case, Timed, cases_of, in_bars, predict, report, summary, table

from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.sync import sync_groups
from sailor_cloud.workload import ComputeProfiles, profiles

RUNS = Path(__file__).with_name("unseen_runs.csv")
# Gbit/s of a node's network that counts as slow.
SLOW_GBPS = 800.0
_HEAD = """\
# Runs of unseen sources

Tokens/s and device of {rows} published runs of {sources} sources that no constant was fitted on, and no ± calibrated
on. The sources were found after the simulator's constants were fixed. A source counts as one, whatever its rows. Only
runs whose figures were read in the source are here: none of low trust, and none whose address is not known. That
Megatron-LM has kernel rates of its own was decided with NeMo's rows in sight; their sizes come from other measurements
(`sailor_cloud/simulator/engines/registry.py`). `unseen_runs.csv` has address, date and assumptions of each row. The ±
has a part for programs without runs on a generation since the first 150 rows were predicted. Its size comes from other
runs alone (`prediction_errors.md`). The messages of ZeRO-3 and the time of a ring's step were changed with the last
36 rows in sight (2026-12). Their sizes come from the sources of NCCL, DeepSpeed and PyTorch, none from a run; the first
prediction of each of these rows is kept.

| means over sources | error | bias | inside p50 | inside p90 |
|---|---|---|---|---|
"""

_STAYS = """\
What stays wrong, and what was tried:

- DeepSpeed on 1,024 A800 (u209, u211) is still up to twice as fast as measured. Its traces show that it does not hide
  the scatter of gradients (AMSP paper, section VI). With 20 instead of 14 µs a step they are off by 2 and 43 %, but
  PyTorch's H100 runs (u035) by -23 instead of -6 %. That constant would be fitted on these rows, so 14 stays.
- At twice the devices of the paper's table DeepSpeed of 2021 takes no longer (u201 and u202, u204 and u205). A step
  that costs the same on all rings takes twice as long there: too fast on 768 and 1,120, too slow on 1,536 and 2,240.
- u233 gets about half of the rate of its cards, if its exchange is not hidden. Each ring has one device per node.
  Whether the network is oversubscribed is not stated.
- FSDP over TCP (u235) hides less of its exchange than predicted, or does not reach the rate of four pairs of devices.
  One row with assumed settings does not tell which.
- u192 has an unknown microbatch: with one sequence instead of four, weights would be gathered four times.
- u199 is not bound by the network: it runs modules of transformers with plain attention.
- The share of an exchange that stays visible (0.11) was not changed.
- Not added, since the figures were not found in text: ZeRO++ (1 to 8 InfiniBand cards), MiCS (p3dn, p4d), SageMaker's
  sharded data parallelism, T5 on IBM's Ethernet, VectorLM on 50 Gbit/s (no batch size).
"""


def timed(runs: Sequence[PublishedRun], known: ComputeProfiles) -> list[Timed]:
    """Predict runs. Raises ValueError if one can't be laid out: every row of this table can."""
    cases, unlaid = cases_of(runs, known)
    if unlaid:
        raise ValueError("; ".join(f"{each.id}: {each.reason}" for each in unlaid))
    return [predict(case) for case in cases]


def by(name: Callable[[Timed], str], rows: Sequence[Timed]) -> dict[str, list[Timed]]:
    """Return rows by a name, largest group first."""
    found: dict[str, list[Timed]] = {}
    for each in rows:
        found.setdefault(name(each), []).append(each)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def overall(title: str, rows: Sequence[Timed]) -> str:
    """Return a table line with the means over sources."""
    each = [summary(of) for of in by(lambda row: row.run.source_name, rows).values()]
    error, bias, p50, p90 = (
        float(np.mean([of[name] for of in each])) for name in ("mean", "bias", "inside_p50", "inside_p90")
    )
    return f"| {title}, {len(each)} sources, {len(rows)} rows | {error:.1%} | {bias:+.1%} | {p50:.0%} | {p90:.0%} |"


def groups(title: str, name: Callable[[Timed], str], rows: Sequence[Timed]) -> list[str]:
    """Return the figures of each group as a table, with the median p50 and p90 that were stated."""
    lines = [
        f"## {title}",
        "",
        "| | rows | mean error | bias | p50 stated | inside p50 | p90 stated | inside p90 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, of in by(name, rows).items():
        found = summary(of)
        stated = [float(np.median([getattr(each, kind) for each in of])) for kind in ("error_p50", "error_p90")]
        lines.append(
            f"| {group} | {len(of)} | {found['mean']:.1%} | {found['bias']:+.1%} | {stated[0]:.1%} "
            f"| {found['inside_p50']:.0%} | {stated[1]:.1%} | {found['inside_p90']:.0%} |"
        )
    return [*lines, ""]


def interleaved(rows: Sequence[Timed], plain: Sequence[Timed]) -> list[str]:
    """Return the errors of runs with virtual stages beside those of the same runs in 1F1B, `plain`."""
    lines = ["## Virtual stages", "", "| | rows | mean error | in 1F1B | ratio |", "|---|---|---|---|---|"]
    in_1f1b = {each.run.id: each for each in plain}
    for name, of in by(lambda row: row.run.source_name, [row for row in rows if row.run.virtual_stages > 1]).items():
        error, without = summary(of)["mean"], summary([in_1f1b[each.run.id] for each in of])["mean"]
        lines.append(f"| {name} | {len(of)} | {error:.1%} | {without:.1%} | {error / without:.2f} |")
    return [*lines, ""]


def bound_by_network(case: Case) -> bool:
    """Whether a sharded run exchanges weights and gradients longer than it computes in a pass."""
    layout = lay_out(case.plan, case.scenario)
    groups, seat = sync_groups(layout), layout.seats[0]
    span = seat.stage.first_layer, seat.stage.end_layer
    exchange = sum(group.forward_s + group.backward_s for group in groups if seat in group.members)
    return bool(exchange > seat.table.compute_s(*span))


def sharded(rows: Sequence[Timed], known: ComputeProfiles) -> list[str]:
    """Return the errors of runs that shard weights over several nodes, by what bounds them, and slow networks' runs."""
    over = [row for row in rows if row.run.zero_stage == 3 and row.run.devices > (row.run.devices_per_node or 8)]
    cases, _ = cases_of([row.run for row in over], known)
    bound = {case.run.id for case in cases if bound_by_network(case)}
    lines = [
        "## ZeRO-3 over several nodes",
        "",
        "Means over sources, without eager scripts. First error: of the prediction made when a row was found.",
        "",
        "| | rows | sources | mean error | bias | with a first error | their first error | now |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, of in (
        ("exchange longer than compute", [row for row in over if row.run.id in bound]),
        ("compute longer", [row for row in over if row.run.id not in bound]),
    ):
        each = [summary(group) for group in by(lambda row: row.run.source_name, of).values()]
        new = by(lambda row: row.run.source_name, [row for row in of if row.run.first_error is not None]).values()
        first = np.mean([np.mean([abs(row.run.first_error or 0.0) for row in group]) for group in new])
        now = np.mean([summary(group)["mean"] for group in new])
        lines.append(
            f"| {title} | {len(of)} | {len(each)} | {np.mean([one['mean'] for one in each]):.1%} "
            f"| {np.mean([one['bias'] for one in each]):+.1%} | {sum(map(len, new))} | {first:.1%} | {now:.1%} |"
        )
    lines += [
        "",
        f"Runs on nodes with at most {SLOW_GBPS:.0f} Gbit/s, and those whose exchange is longer (*):",
        "",
        "| run | model | devices | Gbit/s | measured | predicted | error | first |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in over:
        run, mark = row.run, "*" if row.run.id in bound else ""
        if not mark and (run.internode_gbps or SLOW_GBPS + 1.0) > SLOW_GBPS:
            continue
        tokens = run.global_batch_size * run.sequence_length / run.devices
        assert run.tokens_per_s_per_device is not None
        first_error = "" if run.first_error is None else f"{run.first_error:+.0%}"
        lines.append(
            f"| {run.id}{mark} {run.source_name} | {run.decoder.name} | {run.devices} | {run.internode_gbps:.0f} "
            f"| {tokens / run.tokens_per_s_per_device:.2f} s | {tokens / row.tokens_per_s:.2f} s | {row.error:+.0%} "
            f"| {first_error} |"
        )
    return [*lines, "", _STAYS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--results", type=Path, help="write the report to this file instead of stdout")
    chosen = parser.parse_args()
    known = profiles.load()
    runs, unread = read_published(chosen.runs)
    if unread:
        raise ValueError("; ".join(f"{each.id}: {each.reason}" for each in unread))
    rows = timed([run for run in runs if in_bars(run)], known)
    programs = [row for row in rows if not row.run.eager_script]
    figures = table(rows, named=lambda runs: [run.source_name for run in runs])
    names = by(lambda row: row.run.source_name, rows)
    lines = [_HEAD.format(rows=len(rows), sources=len(names)) + overall("all", rows)]
    lines.append(overall("without eager scripts", programs))
    plain = timed([replace(row.run, virtual_stages=1) for row in programs], known)
    lines.append(overall("same, virtual stages ignored", plain))
    narrow = replace(known, errors=replace(known.errors, program=0.0))
    lines += [overall("same, ± without `program`", timed([row.run for row in programs], narrow)), ""]
    lines += report("By source", figures)
    scripts = [name for name, of in names.items() if of[0].run.eager_script]
    lines += [f"Eager scripts of the source's own: {'; '.join(scripts)}.", ""]
    lines += interleaved(programs, plain)
    lines += sharded(programs, known)
    lines += groups("By engine, without eager scripts", lambda row: row.run.engine.name, programs)
    lines += groups("By accelerator, without eager scripts", lambda row: row.run.accelerator, programs)
    write("\n".join([*lines, measured_on()]), chosen.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
