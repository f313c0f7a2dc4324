"""Dynamic loss scaling for fp16: keeps small gradients above the smallest number that 16 bits can represent."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SCALE = 2.0**16  # as torch.amp.GradScaler begins, grows and falls
GROWTH_INTERVAL = 2000
_SMALLEST = 2.0**-14


@dataclass(slots=True)
class LossScale:
    """The factor on the loss; every rank sees the same norm, so all keep the same scale."""

    scale: float = 1.0
    good_steps: int = 0
    dynamic: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether gradients overflow even without scaling, so that training can't continue."""
        return self.dynamic and self.scale < _SMALLEST

    def update(self, *, overflowed: bool) -> None:
        """Halve the scale after an overflow, double it after enough steps without one."""
        if not self.dynamic:
            return
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.scale /= 2.0
        elif self.good_steps == GROWTH_INTERVAL:
            self.scale, self.good_steps = self.scale * 2.0, 0
