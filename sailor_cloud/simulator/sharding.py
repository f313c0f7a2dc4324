"""What data-parallel ranks exchange under each ZeRO stage, and when."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Bytes per parameter that go once round a ring of the pipelines; a sum goes round twice.

    `gradient` is what a parameter's gradient has. `summed` goes after, or beside, the last backward pass; `gathered`
    after the optimizer step; `forward` and `backward` beside every such pass.
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
        """The share that every microbatch moves."""
        return (self.forward + self.backward) / self.total


def sharding(zero_stage: int, *, weight_bytes: float, gradient_bytes: float, scatter_sums: bool = True) -> Sharding:
    """Return what a ZeRO stage moves.

    0 sums gradients. 1 sums them, each rank its share alone (`scatter_sums`) or all of them, and gathers the updated
    weights. 2 scatters them beside every backward pass, since no
    rank keeps them whole, and gathers the weights. 3 gathers weights beside both passes and scatters gradients beside
    the backward one. Source: Rajbhandari et al., ZeRO, SC20.
    """
    return Sharding(
        gradient=gradient_bytes,
        summed={0: 2.0, 1: 1.0 if scatter_sums else 2.0}.get(zero_stage, 0.0) * gradient_bytes,
        gathered=weight_bytes if zero_stage in (1, 2) else 0.0,
        forward=weight_bytes if zero_stage == 3 else 0.0,
        backward=(gradient_bytes if zero_stage >= 2 else 0.0) + (weight_bytes if zero_stage == 3 else 0.0),
    )
