"""The cheapest mix of pipelines that carries the global batch in a given time: linear and integer programme."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.columns import Column, Columns
from sailor_cloud.planner.programme import integer, linear
from sailor_cloud.planner.quotas import quota_arrays
from sailor_cloud.planner.space import Space

Floats = NDArray[np.float64]

# Columns that the integer programme may choose from, and the nodes of its search tree.
INTEGER_COLUMNS = 80
INTEGER_NODES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often each column is used; `usd_per_hour` includes the egress between stages."""

    usd_per_hour: float
    pipelines: float
    device_price: Floats
    batch_price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """Columns under limits on the devices of each row, pipelines and nodes.

    device_rates: USD per hour of one device, per row. node_share: nodes that one device takes at least, per row.
    quota_units: the least that one device of each row takes of each quota, shape [quotas, rows]; quota_left: [quotas].
    """

    batch: int
    devices: Floats
    device_rates: Floats
    node_share: Floats
    max_nodes: float | None
    quota_units: Floats
    quota_left: Floats

    @classmethod
    def of(cls, space: Space, *, counts_nodes: bool) -> Master:
        """Return the master of a space; `counts_nodes` minimises nodes instead of money."""
        rows = range(len(space.candidates.rows))
        by_row = [[index for index, pool in enumerate(space.pools) if pool.row == row] for row in rows]
        rates = [min((space.rates[i].expected / space.pools[i].devices for i in row), default=0.0) for row in by_row]
        share = np.array([1.0 / max((space.pools[i].devices for i in row), default=1) for row in by_row])
        limits = np.array([row.devices for row in space.candidates.rows], dtype=np.float64)
        most = space.scenario.job.constraints.max_nodes
        quotas = quota_arrays(space.candidates)
        return cls(
            batch=space.batch,
            devices=np.where([bool(row) for row in by_row], limits, 0.0),
            device_rates=share if counts_nodes else np.array(rates),
            node_share=share,
            max_nodes=None if most is None else float(most),
            quota_units=quotas.row_units,
            quota_left=quotas.left,
        )

    def relaxed(self, columns: Columns, seconds: float, pipelines: int) -> Mix | None:
        """Return the cheapest fractional mix, or None if no mix carries the batch in time.

        seconds: schedule time of an iteration, gradient sync and optimizer step taken off.
        """
        value = columns.samples(seconds, self.batch)
        if self._most(columns, value, pipelines) < self.batch * (1.0 - 1e-6):
            return None
        cost = self._cost(columns, value, seconds)
        rows, limits = self._rows(columns, pipelines)
        solved = linear(cost, np.vstack([rows, -value[None]]), np.concatenate([limits, [-float(self.batch)]]))
        if solved is None:
            return None
        return Mix(
            usd_per_hour=solved.cost,
            pipelines=float(solved.amounts.sum()),
            device_price=solved.prices[: len(self.devices)],
            batch_price=float(solved.prices[-1]),
        )

    def _most(self, columns: Columns, value: Floats, pipelines: int) -> float:
        """Return samples that no mix carries more of, by one set of prices of devices, the best of each row's."""
        each = value / columns.devices.sum(axis=0)
        price = np.where(columns.devices > 0, each, 0.0).max(axis=1)
        worth = price @ columns.devices
        bought = np.where(value > 0, value / np.maximum(worth, 1e-300), 0.0).max()
        return float(min(bought * (price @ self.devices), pipelines * value.max()))

    def whole(self, columns: Columns, seconds: float, pipelines: int) -> tuple[Column, ...] | None:
        """Return the cheapest whole mix whose microbatches can make up the batch exactly, or None.

        A pipeline may leave out microbatches; how many are left out of each size is a variable, too.
        """
        relaxed = self.relaxed(columns, seconds, pipelines)
        if relaxed is None:
            return None
        value = columns.samples(seconds, self.batch)
        rows, limits = self._rows(columns, pipelines)
        cost = self._cost(columns, value, seconds)
        reduced = cost + rows[: len(self.devices)].T @ relaxed.device_price - value * relaxed.batch_price
        kept = np.sort(np.lexsort((np.arange(len(columns)), np.where(value > 0, reduced, np.inf)))[:INTEGER_COLUMNS])
        kept = kept[value[kept] > 0]
        sizes = columns.sizes[kept]
        distinct = np.array(sorted(set(sizes.tolist())))
        spare = (sizes[None] == distinct[:, None]) * (value[kept] / sizes - 1)
        slack = -np.eye(len(distinct))
        blocks = np.vstack(
            [
                np.hstack([rows[:, kept], np.zeros((len(rows), len(distinct)))]),
                np.concatenate([value[kept], -distinct])[None],
                np.hstack([spare, slack]),
            ]
        )
        counts = integer(
            np.concatenate([cost[kept], np.zeros(len(distinct))]),
            blocks,
            np.concatenate([np.full(len(rows), -np.inf), [self.batch], np.zeros(len(distinct))]),
            np.concatenate([limits, [self.batch], np.full(len(distinct), np.inf)]),
            nodes=INTEGER_NODES,
            gap=1e-3,
        )
        if counts is None:
            return None
        counts = counts[: len(kept)].astype(int)
        return tuple(columns.every[index] for index, count in zip(kept, counts, strict=True) for _ in range(count))

    def _cost(self, columns: Columns, value: Floats, seconds: float) -> Floats:
        rates = self.device_rates @ columns.devices
        egress = columns.usd_per_sample * value * 3600.0 / seconds
        return np.asarray(rates + egress)

    def _rows(self, columns: Columns, pipelines: int) -> tuple[Floats, Floats]:
        used = columns.devices
        rows, limits = [used, np.ones((1, len(columns)))], [*self.devices, float(pipelines)]
        if self.max_nodes is not None:
            rows.append((self.node_share @ used)[None])
            limits.append(self.max_nodes)
        rows.append(self.quota_units @ used)
        limits += [float(left) for left in self.quota_left]
        return np.vstack(rows), np.array(limits)
