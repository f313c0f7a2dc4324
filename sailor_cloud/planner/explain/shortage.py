"""Says in figures why a smaller space has no plan: what the model needs on an accelerator, and what is allowed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.space.space import Space
from sailor_cloud.units import GIB, MIB

NO_PLAN = "no plan was found that fits the zones' quotas"
NO_PLAN_YET = "no plan yet that fits the zones' quotas"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """The fewest devices, in whole nodes, on which one pipeline of equal stages fits."""

    devices: int
    nodes: int


def shortage(space: Space, *, one_zone: bool) -> str:
    """Return why no plan of a space fits: accelerators whose limit in each zone is below the model's need.

    The need is that of one pipeline with one sample at a time on equal nodes, with recomputation if that helps. Stages
    of different degrees, or several accelerators together, may do with less.
    """
    short, loose, tightest = [], False, ""
    most_nodes = space.scenario.job.constraints.max_nodes
    for name in sorted({pool.accelerator.name for pool in space.pools}):
        allowed = _allowed(space, name, one_zone=one_zone)
        need = _need(space, name)
        if need is None:
            tightest = tightest or _largest_layer(space, name)
        elif need.devices > allowed:
            short.append(f"equal stages need {need.devices} {name}, and the quota is {allowed}")
        elif most_nodes is not None and need.nodes > most_nodes:
            short.append(f"equal stages need {need.nodes} nodes of {name}, and max_nodes is {most_nodes}")
        else:
            loose = True
    if loose or not (short or tightest):
        return NO_PLAN
    if short:
        return f"does not fit in memory: {'; '.join(short)}"
    return f"does not fit in memory: {tightest}"


def _allowed(space: Space, name: str, *, one_zone: bool) -> int:
    """Return the devices of an accelerator that a plan may have, in the largest zone or over all zones."""
    by_zone: Counter[str] = Counter()
    for row in {space.pools[index].row for index in _pools(space, name)}:
        by_zone[space.candidates.rows[row].zone] += space.candidates.rows[row].devices
    return max(by_zone.values()) if one_zone else by_zone.total()


def _pools(space: Space, name: str) -> list[int]:
    return [index for index, pool in enumerate(space.pools) if pool.accelerator.name == name]


def _need(space: Space, name: str) -> _Need | None:
    """Return the fewest devices of an accelerator that hold the model, or None if no number does."""
    found = []
    for index in _pools(space, name):
        devices = space.pools[index].devices
        for tp in space.tp_degrees[index]:
            fewest = _fewest_stages(space, index, tp)
            if fewest is not None:
                nodes = -(-fewest // (devices // tp))
                found.append((nodes * devices, nodes))
    return _Need(devices=min(found)[0], nodes=min(nodes for _, nodes in found)) if found else None


def _fewest_stages(space: Space, pool: int, tp: int) -> int | None:
    """Return the fewest stages that hold all layers, computed once for each accelerator and degree."""
    known: dict[tuple[str, int, int], int | None] = space.known.searches.setdefault("fewest stages", {})
    key = space.pools[pool].accelerator.name, tp, space.zero_stage
    if key not in known:
        known[key] = _counted_stages(space, pool, tp)
    return known[key]


def _counted_stages(space: Space, pool: int, tp: int) -> int | None:
    """Return the fewest stages. From the last one on, each holds as many layers as fit."""
    tables = [space.table(pool, tp, 1, recompute=kind) for kind in (Recompute.NONE, Recompute.FULL)]
    end = space.layers
    for behind in range(1, space.layers + 1):
        firsts = np.arange(end)
        held = min(behind, space.batch)
        used = np.minimum(*(table.memory_bytes(firsts, end, in_flight=held) for table in tables))
        fitting = firsts[used <= tables[0].limit_bytes]
        if len(fitting) == 0:
            return None
        end = int(fitting[0])
        if end == 0:
            return behind
    return None


def _largest_layer(space: Space, name: str) -> str:
    """Return the share of a device that the largest layer needs, split over all devices of a node."""
    found = []
    for index in _pools(space, name):
        table = space.table(index, max(space.tp_degrees[index]), 1)
        layers = np.arange(table.layers)
        found.append((int(np.max(table.memory_bytes(layers, layers + 1, in_flight=1))), table.limit_bytes))
    used, limit = min(found)
    unit, unit_name = (GIB, "GiB") if limit >= GIB else (MIB, "MiB")
    return f"one layer takes {used / unit:.3g} of {limit / unit:.3g} {unit_name} of one {name}"
