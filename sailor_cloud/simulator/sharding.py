"""The data that data-parallel ranks exchange under each ZeRO stage, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Bytes per parameter that pass once around a ring of the pipelines; an all-reduce passes twice.

    `gradient` is the size of a parameter's gradient. `summed` is exchanged after, or during, the last backward pass;
    `gathered` after the optimizer step; `forward` and `backward` during every such pass.
    """

    gradient: float
    summed: float
    gathered: float
    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.summed + self.gathered + self.forward + self.backward

    @property
    def gathered_share(self) -> float:
        return self.gathered / self.total

    @property
    def summed_share(self) -> float:
        return self.summed / self.total

    @property
    def passes_share(self) -> float:
        """The share that every microbatch exchanges."""
        return (self.forward + self.backward) / self.total


def sharding(zero_stage: int, *, weight_bytes: float, gradient_bytes: float, scatter_sums: bool = True) -> Sharding:
    """Return the exchanges of a ZeRO stage.

    0 sums gradients. 1 sums them, each rank only its share (`scatter_sums`) or all of them, and gathers the updated
    weights. 2 scatters them during every backward pass, since no rank keeps them whole, and gathers the weights. 3
    gathers weights during both passes and scatters gradients during the backward one. Source: Rajbhandari et al., ZeRO,
    SC20.
    """
    return Sharding(
        gradient=gradient_bytes,
        summed={0: 2.0, 1: 1.0 if scatter_sums else 2.0}.get(zero_stage, 0.0) * gradient_bytes,
        gathered=weight_bytes if zero_stage in (1, 2) else 0.0,
        forward=weight_bytes if zero_stage == 3 else 0.0,
        backward=(gradient_bytes if zero_stage >= 2 else 0.0) + (weight_bytes if zero_stage == 3 else 0.0),
    )
