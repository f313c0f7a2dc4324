"""What a search over even batches found."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.planner.even.costs import Chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A plan: its value, the part of the space that it was found in, and what that part's judge says of it."""

    value: float
    part: int
    size: int
    replicas: int
    chain: Chain
    placed: object

    def order(self) -> tuple[object, ...]:
        """Return what the best comes first by, the same in every search."""
        return (self.value, self.part, self.size, self.replicas, self.chain.cut, self.chain.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Plans found, best first; `bound` is a value that no plan of the space undercuts, infinite where there is none."""

    found: tuple[Found, ...]
    bound: float
    nodes: int
    pipelines: int
