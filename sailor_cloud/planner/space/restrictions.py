"""Parts of a space that are searched separately: requested restrictions, and accelerators that can't be mixed."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from itertools import product

from sailor_cloud.model.offer import of_different_builds
from sailor_cloud.planner.space.candidates import Pool
from sailor_cloud.planner.space.space import Space

# A space with at most this many limits of the job, an accelerator in a zone each, is searched as a whole.
MOST_ROWS = 8


class Restriction(StrEnum):
    """A smaller space, to show what the whole one adds."""

    ONE_ACCELERATOR = "one-accelerator"
    ONE_ZONE = "one-zone"
    EVEN_BATCHES = "even-batches"
    EVEN_LAYERS = "even-layers"


EVEN = frozenset({Restriction.EVEN_BATCHES, Restriction.EVEN_LAYERS})


def variants(space: Space, restrictions: Collection[Restriction]) -> tuple[Space, ...]:
    """Return the parts of a space whose best plan is the best one under the restrictions.

    Returns the space itself if it is the only part. Of the same pools, the part with ZeRO-1 comes first. All ranks
    share one build of torch, so accelerators too old for the new one and too new for the old one are kept apart.
    """
    pools = space.pools
    accelerators: list[frozenset[str]] = _buildable(pools)
    if Restriction.ONE_ACCELERATOR in restrictions:
        accelerators = [frozenset([name]) for name in sorted({pool.accelerator.name for pool in pools})]
    zones: list[frozenset[str]] = [frozenset(pool.offer.zone for pool in pools)]
    if Restriction.ONE_ZONE in restrictions:
        zones = [frozenset([name]) for name in sorted({pool.offer.zone for pool in pools})]
    stages = zero_stages(space)[::-1]
    if len(accelerators) == len(zones) == 1 and stages == (space.zero_stage,):
        return (space,)
    parts = [
        part_of(space, names, places, zero_stage=stage) for names, places, stage in product(accelerators, zones, stages)
    ]
    return tuple(part for part in parts if part.pools)


def zero_stages(space: Space) -> tuple[int, ...]:
    """Return the ZeRO stages for plans of a space.

    ZeRO-1 frees memory for more layers and larger microbatches and divides the optimizer step, but weights must be
    gathered after it.
    """
    if space.zero_stage:
        return (space.zero_stage,)
    engine, most = space.scenario.engine, space.scenario.job.training.max_zero_stage
    # From ZeRO-2 on, all pipelines are equal, which takes a separate search.
    known = max(engine.pipelined_zero_stages) if engine.uniform else 1
    return tuple(
        stage for stage in engine.pipelined_zero_stages if stage <= (known if most is None else min(known, most))
    )


def fits_whole(space: Space) -> list[bool]:
    """Return for each accelerator whether one device holds the whole model with its optimizer."""
    return [held <= limit for held, limit in _whole_models(space, replicas=2).values()]


def simple_zero_stages(space: Space) -> tuple[int, ...]:
    """Return the ZeRO stages of simple plans.

    If all devices hold the whole model, plans with ZeRO-1 are within a few per cent of those without.
    """
    return (space.zero_stage,) if all(fits_whole(space)) else zero_stages(space)


def also_fits(space: Space, sharded: Space) -> bool:
    """Return whether plans of a space also fit at the higher ZeRO stage of the same space.

    In fp32 ZeRO keeps one more copy of the weights. So a single pipeline needs more memory with it, and with
    `sync_every` any number. That is harmless if every device can hold the whole model.
    """
    less, more = _whole_models(space, replicas=1), _whole_models(sharded, replicas=1)
    return all(held <= max(less[name][0], limit) for name, (held, limit) in more.items())


def _whole_models(space: Space, *, replicas: int) -> dict[str, tuple[float, float]]:
    """Return, for each accelerator, the bytes of the whole model on one device and those that it has."""
    found: dict[str, tuple[float, float]] = {}
    for index, pool in enumerate(space.pools):
        if 1 in space.tp_degrees[index]:
            table = space.table(index, 1, 1)
            held = table.memory_bytes(0, table.layers, in_flight=1, replicas=replicas)
            found[pool.accelerator.name] = float(held), float(table.limit_bytes)
    return found


def part_of(
    space: Space, accelerators: Collection[str], zones: Collection[str], *, zero_stage: int | None = None
) -> Space:
    """Return the space over some accelerators and zones, by default with the same ZeRO stage."""
    kept = [
        index
        for index, pool in enumerate(space.pools)
        if pool.accelerator.name in accelerators and pool.offer.zone in zones
    ]
    return space.part(kept, zero_stage=space.zero_stage if zero_stage is None else zero_stage)


def _buildable(pools: tuple[Pool, ...]) -> list[frozenset[str]]:
    capability = {pool.accelerator.name: pool.accelerator.compute_capability for pool in pools}
    apart = of_different_builds(capability)
    return [frozenset(capability)] if apart is None else [frozenset(capability) - names for names in apart]
