"""Cheapest pipelines by dynamic programming: for many limits on the bottleneck and prices of devices at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.kinds import Kinds, StageTimes
from sailor_cloud.simulator import Engine
from sailor_cloud.simulator.engines import Transfers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Independent problems solved side by side.

    bottleneck_s: [lanes], no stage may be busy for longer. fill_price: [lanes], per second of fill. device_price:
    [rows, lanes].
    """

    bottleneck_s: Floats
    fill_price: Floats
    device_price: Floats

    @property
    def count(self) -> int:
        return len(self.bottleneck_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A pipeline by kinds: stage s is of kinds[s] and holds the layers [cut[s], cut[s + 1])."""

    microbatch_size: int
    kinds: tuple[int, ...]
    cut: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """value: [lanes], the least price of a chain, a lower bound for real ones; chains: the ones that reach it."""

    value: Floats
    chains: tuple[Chain | None, ...]


def after_share(engine: Engine) -> float:
    """Return which part of the cut after a stage keeps it busy, as far as that can be said of one stage alone."""
    return {Transfers.BLOCKING: 1.0, Transfers.RECEIVER: 0.5, Transfers.OVERLAPPED: 0.0}[engine.transfers]


def cheapest_chains(kinds: Kinds, times: StageTimes, allowed: Bools, lanes: Lanes) -> Chains:
    """Return the cheapest chain of every lane; `allowed` [kind, first, end] are the stages that may be used.

    A stage is busy for its compute, the least cut before it and its share of the least cut after it.
    """
    program = _Program(kinds, times, allowed, lanes)
    program.run()
    return program.result()


class _Program:
    """value[s, layer, kind, lane]: least price of the stages from a layer on, s + 1 of them, the first of a kind."""

    def __init__(self, kinds: Kinds, times: StageTimes, allowed: Bools, lanes: Lanes) -> None:
        self.kinds, self.times, self.lanes = kinds, times, lanes
        self.layers = kinds.space.layers
        share = after_share(kinds.space.scenario.engine)
        overlapped = kinds.space.scenario.engine.transfers is Transfers.OVERLAPPED
        before = np.zeros_like(times.before_s) if overlapped else times.before_s
        waits = before[:, :, None] + share * times.after_s[:, None, :]
        compute = np.where(allowed, times.compute_s, np.inf)
        self.compute, self.busy = np.where(np.isfinite(compute), compute, 0.0), compute + waits
        tps = np.array([kind.tp for kind in kinds.members], dtype=np.float64)
        rows = np.array([kind.row for kind in kinds.members])
        self.price = lanes.device_price[rows] * tps[:, None]
        shape = (kinds.max_stages, self.layers + 1, len(kinds), len(lanes.bottleneck_s))
        self.value = np.full(shape, np.inf)
        self.rest = np.full(shape, np.inf)

    def run(self) -> None:
        least = self.busy.min(axis=1)
        possible = least <= self.lanes.bottleneck_s.max()
        # Layers from which so many stages can reach the end.
        reached = np.zeros((self.kinds.max_stages, self.layers + 1), dtype=bool)
        for first in range(self.layers - 1, -1, -1):
            for stages in range(self.kinds.max_stages):
                ends = possible[stages, first].copy()
                if stages:
                    ends &= reached[stages - 1]
                else:
                    ends[:-1] = False
                if ends.any():
                    self._stage(stages, first, np.flatnonzero(ends))
                    reached[stages, first] = np.isfinite(self.value[stages, first]).any()
                    if first and reached[stages, first]:
                        self._hand_on(stages, first)

    def _stage(self, stages: int, first: int, ends: Ints) -> None:
        """Enter the chains that begin with a stage at layer `first`."""
        cost = self.compute[stages, :, first, ends][:, :, None] * self.lanes.fill_price
        if stages:
            cost += self.rest[stages - 1, ends]
        longer = self.busy[stages, :, first, ends][:, :, None] > self.lanes.bottleneck_s
        np.copyto(cost, np.inf, where=longer)
        self.value[stages, first] = cost.min(axis=0) + self.price

    def _hand_on(self, stages: int, layer: int) -> None:
        """Enter what a stage of each kind that ends before `layer` has to add: the best next kind and the cut."""
        total = self.value[stages, layer] + self.times.boundary_s[:, :, layer, None] * self.lanes.fill_price
        self.rest[stages, layer] = total.min(axis=1)

    def result(self) -> Chains:
        whole = self.value[:, 0].reshape(-1, self.value.shape[-1])
        best = whole.argmin(axis=0)
        value = whole.min(axis=0)
        stages, kind = np.divmod(best, len(self.kinds))
        chains: list[Chain | None] = [None] * len(value)
        for left in sorted(set(stages[np.isfinite(value)].tolist())):
            lanes = np.flatnonzero(np.isfinite(value) & (stages == left))
            for lane, chain in zip(lanes.tolist(), self._traced(left, kind[lanes], lanes), strict=True):
                chains[lane] = chain
        return Chains(value=value, chains=tuple(chains))

    def _traced(self, stages: int, kind: Ints, lanes: Ints) -> list[Chain]:
        """Return the best chains of some lanes, `stages` + 1 long, the first stage of a kind: what was least is again.

        Of equal ends and next kinds the first is taken.
        """
        fill, bottleneck = self.lanes.fill_price[lanes, None], self.lanes.bottleneck_s[lanes, None]
        members, cuts = [kind], [np.zeros(len(lanes), dtype=np.int64)]
        for left in range(stages, 0, -1):
            first, kind = cuts[-1], members[-1]
            # [lanes, ends] and [lanes, next kinds].
            cost = self.compute[left, kind, first] * fill + self.rest[left - 1, :, kind, lanes]
            end = np.where(self.busy[left, kind, first] > bottleneck, np.inf, cost).argmin(axis=1)
            total = self.value[left - 1, end, :, lanes] + self.times.boundary_s[kind, :, end] * fill
            cuts.append(end)
            members.append(total.argmin(axis=1))
        cuts.append(np.full(len(lanes), self.layers))
        return [
            Chain(microbatch_size=self.times.microbatch_size, kinds=chosen, cut=cut)
            for chosen, cut in zip(
                map(tuple, np.array(members).T.tolist()), map(tuple, np.array(cuts).T.tolist()), strict=True
            )
        ]
