"""Aceso (Liu et al., EuroSys'24): one search per number of stages that relieves the bottleneck step by step.

It starts with balanced stages. The bottleneck is the fullest stage if one does not fit, else the slowest. Moves reduce
its scarce resource: layers to a neighbour, tensor parallelism from a partner, recomputation, other microbatches or
replicas. The search follows a move without a gain up to seven levels deep, then backtracks; it never repeats a
configuration. The number of configurations is bounded, not the time. It models one kind of GPU and no money. Aceso
mixes replicas and tensor parallelism inside a stage; here all stages have equally many replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.strategies.cluster import Cluster, balanced_cuts
from sailor_cloud.planner.strategies.grid import even_microbatches, proposal
from sailor_cloud.planner.strategies.published.piper import place
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

MOST_HOPS = 7
# Configurations that the search for one number of stages evaluates.
MOST_SEEN = 150


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Configuration:
    """Stages with their layers, tensor parallelism and recomputation, and what all of them share."""

    bounds: tuple[int, ...]
    degrees: tuple[int, ...]
    recompute: tuple[bool, ...]
    replicas: int
    size: int

    @property
    def stages(self) -> int:
        return len(self.degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """The costs of a configuration: seconds, and per stage the seconds of a microbatch and the share of memory."""

    seconds: float
    stage_s: tuple[float, ...]
    fullness: tuple[float, ...]

    @property
    def fits(self) -> bool:
        return max(self.fullness) <= 1.0

    @property
    def rank(self) -> tuple[bool, float]:
        return not self.fits, self.seconds if self.fits else max(self.fullness)

    @property
    def bottleneck(self) -> int:
        binding = self.stage_s if self.fits else self.fullness
        return max(range(len(binding)), key=lambda s: binding[s])


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the fitting results of each search, for each kind of GPU alone."""
    for part in cluster.of_one_accelerator():
        stages = 1
        while stages <= min(part.layers, part.devices):
            yield from _search(part, stages)
            stages = stages + 1 if stages < 8 else stages * 2


def _search(cluster: Cluster, stages: int) -> Iterator[Proposal]:
    start = _balanced(cluster, stages)
    if start is None:
        return
    rated = {start: _rated(cluster, start)}
    waiting, best = [(start, 0)], rated[start]
    while waiting and len(rated) < MOST_SEEN:
        current, hops = waiting.pop()
        rating = rated[current]
        if rating is None:
            continue
        for moved in _moves(cluster, current, rating):
            if moved in rated:
                continue
            found = rated[moved] = _rated(cluster, moved)
            if found is None:
                continue
            if best is None or found.rank < best.rank:
                best, waiting = found, [(moved, 0)]
                break
            if hops < MOST_HOPS:
                waiting.append((moved, hops + 1))
    for configuration, rating in sorted(rated.items()):
        rows = place(cluster, list(configuration.degrees), configuration.replicas)
        if rating is not None and rating.fits and rows is not None:
            kinds = [Recompute.FULL if again else Recompute.NONE for again in configuration.recompute]
            yield proposal(cluster, rating.seconds, rows, configuration.bounds, configuration.size, recompute=kinds)


def _balanced(cluster: Cluster, stages: int) -> Configuration | None:
    """Return even stages with as many replicas as there are devices for, and the smallest microbatch."""
    tp = max((tp for tp in cluster.tp_degrees() if tp * stages <= cluster.devices), default=0)
    table = cluster.table(cluster.accelerators[0], tp, 1) if tp else None
    if table is None:
        return None
    return Configuration(
        bounds=tuple(balanced_cuts(cluster.layer_s(table), stages)),
        degrees=(tp,) * stages,
        recompute=(False,) * stages,
        replicas=min(cluster.devices // (tp * stages), cluster.batch),
        size=1,
    )


def _rated(cluster: Cluster, configuration: Configuration) -> Rating | None:
    """Return the costs of a configuration; None if it is invalid: too many devices, no batch, no profile."""
    stages, replicas = configuration.stages, configuration.replicas
    microbatches = even_microbatches(cluster, replicas, configuration.size)
    if not microbatches or replicas < 1 or replicas * sum(configuration.degrees) > cluster.devices:
        return None
    rows = place(cluster, list(configuration.degrees), replicas)
    if rows is None:
        return None
    stage_s, fullness, sums = [], [], []
    for s, tp in enumerate(configuration.degrees):
        first, end = configuration.bounds[s], configuration.bounds[s + 1]
        kind = Recompute.FULL if configuration.recompute[s] else Recompute.NONE
        table = cluster.table(cluster.accelerators[0], tp, configuration.size, kind)
        if table is None:
            return None
        hop = cluster.transfer_s(rows[s][0], rows[s + 1][0], table, end) if s + 1 < stages else 0.0
        stage_s.append(float(table.compute_s(first, end)) + hop)
        needed = float(table.memory_bytes(first, end, in_flight=min(stages - s, microbatches)))
        fullness.append(needed / table.limit_bytes)
        sums.append(cluster.all_reduce_s(float(table.gradient_bytes(first, end)), rows[s]))
    seconds = (microbatches - 1) * max(stage_s) + sum(stage_s) + max(sums)
    return Rating(seconds=seconds, stage_s=tuple(stage_s), fullness=tuple(fullness))


def _moves(cluster: Cluster, configuration: Configuration, rating: Rating) -> Iterator[Configuration]:
    """Yield moves that relieve the bottleneck, those within the bottleneck stage first."""
    s = rating.bottleneck
    others = sorted((t for t in range(configuration.stages) if t != s), key=lambda t: rating.stage_s[t])
    bounds, degrees, again = configuration.bounds, configuration.degrees, configuration.recompute
    for edge, step in ((s, 1), (s + 1, -1)):
        moved = [*bounds[:edge], bounds[edge] + step, *bounds[edge + 1 :]]
        if 0 < edge < configuration.stages and all(a < b for a, b in pairwise(moved)):
            yield replace(configuration, bounds=tuple(moved))
    yield replace(configuration, recompute=(*again[:s], not again[s], *again[s + 1 :]))
    allowed = cluster.tp_degrees()
    for tp in (degrees[s] * 2, degrees[s] // 2):
        if tp not in allowed:
            continue
        wider = (*degrees[:s], tp, *degrees[s + 1 :])
        yield replace(configuration, degrees=wider)
        for partner in others[:2]:
            if tp > degrees[s] and degrees[partner] // 2 in allowed:
                yield replace(configuration, degrees=(*wider[:partner], degrees[partner] // 2, *wider[partner + 1 :]))
    for size in (configuration.size * 2, configuration.size // 2):
        if size in cluster.microbatch_sizes():
            yield replace(configuration, size=size)
    halved = tuple(tp // 2 for tp in degrees)
    if all(tp in allowed for tp in halved):
        yield replace(configuration, degrees=halved, replicas=configuration.replicas * 2)
    if configuration.replicas > 1:
        doubled = tuple(tp * 2 for tp in degrees)
        if all(tp in allowed for tp in doubled):
            yield replace(configuration, degrees=doubled, replicas=configuration.replicas // 2)
        yield replace(configuration, replicas=configuration.replicas - 1)


ACESO = Strategy(
    name="aceso",
    paper="Liu et al., EuroSys'24",
    summary="one kind of GPU, alleviates the bottleneck stage step by step",
    propose=propose,
    memory=True,
)
