"""The angles by which rotary positions turn queries and keys."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sailor_runtime.spec import ArchitectureSpec, RopeScaling
from sailor_runtime.training.refusal import RefusedError

SCALINGS = ("linear", "llama3")


def angles(form: ArchitectureSpec, tokens: int, device: torch.device) -> Tensor:
    """Return the angle of each pair of elements at each position, float64, shape [tokens, head_size / 2]."""
    assert form.rope_theta is not None
    pairs = torch.arange(0, form.head_size, 2, dtype=torch.float64, device=device) / form.head_size
    frequencies = form.rope_theta**-pairs
    if form.rope_scaling is not None:
        frequencies = _scaled(frequencies, form.rope_scaling)
    return torch.outer(torch.arange(tokens, dtype=torch.float64, device=device), frequencies)


def check(scaling: RopeScaling) -> None:
    """Raise RefusedError for a kind of scaling that is not known here."""
    if scaling.kind not in SCALINGS:
        raise RefusedError(f"rope scaling {scaling.kind!r} is not supported; supported: {', '.join(SCALINGS)}")


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Stretch positions by `factor`: all of them, or for Llama 3.1 only the slow turns, with a soft border.

    Source: Meta, "The Llama 3 Herd of Models" (2024), section 3.4.2, and the config fields of its published weights.
    """
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_positions * frequencies / (2.0 * math.pi)
    # 0 where a pair turns fewer than `low` times over the original context, 1 where more than `high` times.
    share = ((turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)).clamp(0.0, 1.0)
    return frequencies * (share + (1.0 - share) / scaling.factor)
