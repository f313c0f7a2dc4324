"""Plans with equally cut pipelines: a grid of stages by replicas, with a slot in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from sailor_cloud.model.plan import Plan, Recompute
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Slot
from sailor_cloud.planner.strategies.strategy import Proposal

# The slots of each stage, one for each replica.
Rows = tuple[tuple[Slot, ...], ...]


def by_stage(slots: Sequence[Slot], stages: int, replicas: int) -> Rows:
    """Return rows with neighbouring replicas: stage by stage, as Megatron counts its ranks."""
    return tuple(tuple(slots[s * replicas : (s + 1) * replicas]) for s in range(stages))


def by_pipeline(slots: Sequence[Slot], stages: int, replicas: int) -> Rows:
    """Return rows with neighbouring stages: pipeline by pipeline."""
    return tuple(tuple(slots[p * stages + s] for p in range(replicas)) for s in range(stages))


def plan_of(
    cluster: Cluster,
    rows: Rows,
    bounds: Sequence[int],
    size: int,
    *,
    recompute: Sequence[Recompute] = (),
    zero_stage: int = 0,
) -> Plan:
    """Return the plan of some rows; `recompute` by stage. Raises as `Cluster.plan` does."""
    kinds = list(recompute) or [Recompute.NONE] * len(rows)
    stages = list(zip(pairwise(bounds), rows, kinds, strict=True))
    return cluster.plan(
        [
            (size, [Cut(first=a, end=b, slot=row[p], recompute=kind) for (a, b), row, kind in stages])
            for p in range(len(rows[0]))
        ],
        zero_stage=zero_stage,
    )


def proposal(
    cluster: Cluster,
    estimate_s: float,
    rows: Rows,
    bounds: Sequence[int],
    size: int,
    *,
    recompute: Sequence[Recompute] = (),
    zero_stage: int = 0,
) -> Proposal:
    """Return the proposal of some rows."""
    build = partial(plan_of, cluster, rows, bounds, size, recompute=recompute, zero_stage=zero_stage)
    return Proposal(estimate_s=estimate_s, build=build)


def even_microbatches(cluster: Cluster, replicas: int, size: int) -> int:
    """Return the microbatches of each pipeline, the last one perhaps partly filled; 0 if a pipeline gets none."""
    return -(-cluster.batch // (replicas * size)) if replicas * size <= cluster.batch else 0
