"""Piper (Tarnawski et al., NeurIPS'21): a dynamic program over layers, with tensor parallelism by stage.

It minimises the slowest stage's time per sample. Memory counts the microbatches in flight: a stage with d replicas
holds ceil(s / d), if it and the stages after it have s replicas. It models no filling or emptying of pipelines, one
kind of GPU, and no money. In Piper, stages may have different numbers of replicas; our plans can't state that, so here
all stages of a plan have equally many, and the search chooses how many. The microbatch is an input; we run it for each
and take the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.strategies.cluster import Cluster, Floats, Slot
from sailor_cloud.planner.strategies.grid import even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How a stage may be run."""

    tp: int
    recompute: Recompute


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the best pipeline for every number of replicas and microbatch size, on each kind of GPU alone."""
    for part in cluster.of_one_accelerator():
        modes = [Mode(tp=tp, recompute=kind) for tp in part.tp_degrees() for kind in (Recompute.NONE, Recompute.FULL)]
        for replicas in range(1, part.devices + 1):
            # The number of replicas must divide the number of samples.
            if part.batch % replicas == 0:
                for size in part.microbatch_sizes():
                    yield from _best(part, modes, replicas, size)


def _best(cluster: Cluster, modes: list[Mode], replicas: int, size: int) -> Iterator[Proposal]:
    microbatches = even_microbatches(cluster, replicas, size)
    devices = min(cluster.devices // replicas, cluster.layers * max(mode.tp for mode in modes))
    if not microbatches or cluster.batch % (replicas * size):
        return
    stages = pipeline(stage_tables(cluster, modes, replicas, size, microbatches), modes, devices)
    if stages is None:
        return
    slowest, found = stages
    placed = place(cluster, [mode.tp for _, _, mode in found], replicas)
    if placed is None:
        return
    bounds = [0, *(end for _, end, _ in found)]
    estimate = slowest * microbatches
    yield proposal(cluster, estimate, placed, bounds, size, recompute=[mode.recompute for _, _, mode in found])


def stage_tables(cluster: Cluster, modes: list[Mode], replicas: int, size: int, microbatches: int) -> Floats:
    """Return the seconds of each stage by stages from it to the end, mode, first layer and end; infinite if it does not
    fit. Shape [layers + 1, modes, layers + 1, layers + 1]; on the first axis, 1 stage has index 1."""
    layers, accelerator = cluster.layers, cluster.accelerators[0]
    first, end = np.meshgrid(np.arange(layers + 1), np.arange(layers + 1), indexing="ij")
    legal = first < end
    seconds = np.full((layers + 1, len(modes), layers + 1, layers + 1), np.inf)
    for m, mode in enumerate(modes):
        table = cluster.table(accelerator, mode.tp, size, mode.recompute)
        if table is None:
            continue
        slots = cluster.slots(mode.tp)
        hop = cluster.transfer_s(slots[0], slots[-1], table) if len(slots) > 1 else 0.0
        ring = slots[:replicas]
        reduce = cluster.all_reduce_s(1e9, ring) / 1e9
        spent = table.compute_s(first, end) + hop * ((first > 0) + 0.0) + hop * ((end < layers) + 0.0)
        spent = spent + reduce * table.gradient_bytes(first, end) / microbatches
        for stages in range(1, layers + 1):
            needed = table.memory_bytes(first, end, in_flight=min(stages, microbatches))
            seconds[stages, m] = np.where(legal & (needed <= table.limit_bytes), spent, np.inf)
    return seconds


def pipeline(seconds: Floats, modes: list[Mode], devices: int) -> tuple[float, list[tuple[int, int, Mode]]] | None:
    """Return the pipeline on at most `devices` devices with the fastest slowest stage, and that stage's seconds.

    `seconds` as `stage_tables` returns it. Exact.
    """
    layers = seconds.shape[2] - 1
    # Slowest stage of layers [first, layers) by stages and devices; the end and mode of its first stage.
    best = np.full((layers + 1, layers + 1, devices + 1), np.inf)
    best[0, layers, :] = 0.0
    choice = np.zeros((*best.shape, 2), dtype=np.int64)
    for stages in range(1, layers + 1):
        for first in range(layers - stages + 1):
            for m, mode in enumerate(modes):
                if mode.tp > devices:
                    continue
                slowest = np.maximum(seconds[stages, m, first, :, None], best[stages - 1, :, : devices + 1 - mode.tp])
                ends = slowest.argmin(axis=0)
                values = slowest[ends, np.arange(len(ends))]
                better = np.flatnonzero(values < best[stages, first, mode.tp :])
                best[stages, first, mode.tp + better] = values[better]
                choice[stages, first, mode.tp + better, 0] = ends[better]
                choice[stages, first, mode.tp + better, 1] = m
    stages = int(best[1:, 0, devices].argmin()) + 1
    value = float(best[stages, 0, devices])
    if not np.isfinite(value):
        return None
    found, first, count = [], 0, devices
    while stages:
        end, m = map(int, choice[stages, first, count])
        found.append((first, end, modes[m]))
        first, count, stages = end, count - modes[m].tp, stages - 1
    return value, found


def place(cluster: Cluster, degrees: list[int], replicas: int) -> tuple[tuple[Slot, ...], ...] | None:
    """Return slots for each stage, pipeline by pipeline, each stage on one node; None if they do not fit."""
    free = {machine.name: machine.devices for machine in cluster.machines}
    rows: list[list[Slot]] = [[] for _ in degrees]
    for _ in range(replicas):
        for row, tp in zip(rows, degrees, strict=True):
            for machine in cluster.machines:
                if free[machine.name] >= tp:
                    row.append(Slot(machine=machine, first=machine.devices - free[machine.name], tp=tp))
                    free[machine.name] -= tp
                    break
            else:
                return None
    return tuple(map(tuple, rows))


PIPER = Strategy(
    name="piper",
    paper="Tarnawski et al., NeurIPS'21",
    summary="one kind of GPU, tensor parallelism by stage, exact for the slowest stage",
    propose=propose,
    memory=True,
)
