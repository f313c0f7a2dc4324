"""Detects a diverging loss, so that a run stops before it wastes its budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Steps after which a loss still has half its weight. One bad batch moves the mean by a thirtieth of its excess.
HALF_LIFE = 20
_KEPT = 0.5 ** (1.0 / HALF_LIFE)


@dataclass(slots=True)
class LossTrend:
    """The loss averaged over about `HALF_LIFE` steps, and the lowest average so far; nats per token.

    Diverged: the average is more than `most_rise` above its lowest. Cross-entropy is on an absolute scale (2 nats are a
    factor of 7 in perplexity), so the rule is a difference. None disables it. Every rank sees the same loss.
    """

    most_rise: float | None
    mean: float = math.nan
    lowest: float = math.inf
    steps: int = 0

    def add(self, loss: float) -> None:
        """Add the loss of a step; one that is not finite is ignored here."""
        if not math.isfinite(loss):
            return
        self.mean = loss if self.steps == 0 else _KEPT * self.mean + (1.0 - _KEPT) * loss
        self.steps += 1
        self.lowest = min(self.lowest, self.mean)

    @property
    def diverged(self) -> bool:
        return self.most_rise is not None and self.mean - self.lowest > self.most_rise

    @property
    def doubtful(self) -> bool:
        """Whether the loss has risen half of the limit, so that earlier checkpoints are better."""
        return self.most_rise is not None and self.mean - self.lowest > self.most_rise / 2.0

    def notes(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        return {"loss_mean": self.mean, "loss_lowest": self.lowest, "loss_steps": self.steps} if self.steps else {}

    def restore(self, notes: Mapping[str, Any]) -> None:
        if "loss_mean" in notes:
            self.mean, self.lowest, self.steps = notes["loss_mean"], notes["loss_lowest"], notes["loss_steps"]
