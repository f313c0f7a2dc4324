"""The cost of many plans on the same nodes at once, at the simulator's rates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.offer import MINIMUM_BILLED_S
from sailor_cloud.planner.space.goals import Figure
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import preemptions_per_hour, startup_s, teardown_s
from sailor_cloud.simulator.bill import gateways
from sailor_cloud.simulator.money import lost_fraction, start, wait_s
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Rates and times that depend only on the nodes, for one plan or as arrays for many.

    `lost`: the time that preemption adds per second of training; `start_iterations` come before it. Nodes wait for
    `wait_s`. `committed_usd` is paid in any case for the nodes that cost `committed_usd_per_hour`. The totals are lower
    bounds: they leave out checkpoint storage, checkpoint traffic between regions and NAT traffic, which the simulator's
    bill counts.
    """

    steps: int | None
    nodes: float | Floats
    usd_per_hour: float | Floats
    lost: float | Floats
    fixed_s: float
    start_iterations: float = 0.0
    wait_s: float = 0.0
    committed_usd: float = 0.0
    committed_usd_per_hour: float = 0.0

    @classmethod
    def of(cls, space: Space, nodes: Counter[int]) -> Bill:
        """Return the bill of `nodes` by pool; it is computed once."""
        known: dict[tuple[tuple[int, int], ...], Bill] = space.evaluated.setdefault("bills", {})
        # Sums depend on the order of the pools.
        key = tuple(nodes.items())
        if key not in known:
            known[key] = cls._of(space, nodes)
        return known[key]

    @classmethod
    def _of(cls, space: Space, nodes: Counter[int]) -> Bill:
        offers = [space.pools[pool].offer for pool in nodes]
        catalog = space.scenario.catalog
        rate = sum(preemptions_per_hour(space.pools[pool].offer, catalog) * count for pool, count in nodes.items())
        restart = max(startup_s(offer.provider) for offer in offers)
        before = start(space.scenario, (offer.provider for offer in offers), nodes.total())
        return cls(
            steps=space.scenario.job.training.steps,
            nodes=float(nodes.total()),
            usd_per_hour=sum(space.rates[pool].expected * count for pool, count in nodes.items())
            + gateways_usd_per_hour(space, nodes),
            lost=float(
                lost_fraction(
                    rate,
                    interval_s=space.scenario.job.checkpoint.every,
                    checkpoint_s=0.0,
                    restart_s=restart,
                )
            ),
            fixed_s=before.fixed_s + max(teardown_s(offer.provider) for offer in offers),
            start_iterations=before.iterations,
            wait_s=wait_s(offers, space.scenario.as_of),
            committed_usd=sum(space.pools[pool].offer.committed_usd(count) for pool, count in nodes.items()),
            committed_usd_per_hour=sum(
                space.pools[pool].offer.usd_per_hour * count
                for pool, count in nodes.items()
                if space.pools[pool].offer.committed_usd(count)
            ),
        )

    def figures(self, iteration_s: Any, egress_usd: Any, *, saving: float = 0.0) -> dict[Figure, Any]:
        """Return the figures of one plan or an array of plans, from the seconds and USD of egress per iteration.

        `saving`: the time that checkpoints add per second of training, as in `saving_share`. Without a number of steps,
        duration and total are infinite, and nothing limits or minimises them.
        """
        per_s = self.usd_per_hour / SECONDS_PER_HOUR
        duration = total = iteration_s + np.inf
        if self.steps is not None:
            iterations = self.steps * (1.0 + self.lost + saving) + self.start_iterations
            paid = iterations * iteration_s + self.fixed_s
            duration = paid + self.wait_s
            # Start-up and teardown alone last longer than the minimum charge, but for local nodes.
            billed = paid if self.fixed_s >= MINIMUM_BILLED_S else np.maximum(paid, MINIMUM_BILLED_S)
            total = billed * per_s + egress_usd * (self.steps + self.start_iterations)
            if self.committed_usd:
                total = total + np.maximum(
                    0.0, self.committed_usd - paid * self.committed_usd_per_hour / SECONDS_PER_HOUR
                )
        one = isinstance(iteration_s, float)
        return {
            Figure.ITERATION_S: iteration_s,
            Figure.DURATION_S: duration,
            Figure.TOTAL_USD: total,
            Figure.USD_PER_ITERATION: iteration_s * per_s + egress_usd,
            Figure.USD_PER_HOUR: self.usd_per_hour + egress_usd * SECONDS_PER_HOUR / iteration_s,
            Figure.NODES: self.nodes if one else np.broadcast_to(self.nodes, iteration_s.shape),
        }


def gateways_usd_per_hour(space: Space, nodes: Counter[int]) -> float:
    """Return the price of one NAT gateway with its address per region; 0 if nodes have public addresses."""
    scenario = space.scenario
    offers = [space.pools[pool].offer for pool in nodes]
    return sum(usd for _, usd in gateways(offers, scenario.catalog.services, scenario.job.cloud.network))
