"""What a beginner's job file for a provider is filled with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExample:
    """What differs between job files of beginners; the values here suit a cloud with A100 and V100.

    `model` is a preset's name; "" writes a small inline model. `account`: a line of the part `cloud` and its comment.
    """

    provider: str
    zones: tuple[str, ...]
    markets: tuple[str, ...] = ("spot", "on-demand")
    accelerators: tuple[tuple[str, int], ...] = (("A100-40", 16), ("V100-16", 16))
    account: tuple[str, str] | None = None
    name: str = "opt-350m"
    model: str = "opt-350m"
    batch: int = 256
    sequence_length: int = 2048
    steps: int = 2000
    precision: str = "fp16"
    goal: str = "maximize-throughput"
    budget_usd: float = 300.0
    deadline: str = "24h"
