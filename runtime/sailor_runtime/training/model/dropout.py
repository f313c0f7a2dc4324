"""Dropout without state: an element is dropped as a function of where it stands, so every plan drops the same ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, the increment of SplitMix64 (Steele et al., OOPSLA 2014)
_FIRST = 0xBF58476D1CE4E5B9  # the two multipliers of SplitMix64's output function
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Return the logical right shift of 64-bit integers (torch's is arithmetic)."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift(value, 27)) * _signed(_SECOND)
    return value ^ _shift(value, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropout:
    """Drops with `probability` inside one microbatch of one step; `samples` are positions in the global batch."""

    probability: float
    seed: int
    step: int
    samples: Tensor

    def __call__(self, values: Tensor, layer: int, site: str, elements: Tensor) -> Tensor:
        """Return `values` with dropped elements at 0 and the rest scaled up.

        elements: the index of each value within the whole step's tensor of this site, broadcastable to `values`.
        """
        if self.probability == 0.0:
            return values
        digest = hashlib.sha256(f"{self.seed}/{self.step}/{layer}/{site}".encode()).digest()
        key = _signed(int.from_bytes(digest[:8], "big"))
        hashed = _mixed(elements * _signed(_GOLDEN) + key)
        uniform = _shift(hashed, 11).double() * 2.0**-53
        return values * (uniform >= self.probability).to(values.dtype) / (1.0 - self.probability)

    def hidden(self, values: Tensor, layer: int, site: str) -> Tensor:
        """Drop elements of hidden states of shape [samples, tokens, hidden]."""
        if self.probability == 0.0:
            return values
        _, tokens, hidden = values.shape
        rows = self.samples.view(-1, 1, 1) * tokens + torch.arange(tokens, device=values.device).view(1, -1, 1)
        return self(values, layer, site, rows * hidden + torch.arange(hidden, device=values.device))

    def attention(self, values: Tensor, layer: int, heads: int, first_head: int) -> Tensor:
        """Drop attention weights of shape [samples, local heads, tokens, tokens] out of `heads` heads."""
        if self.probability == 0.0:
            return values
        _, local, tokens, _ = values.shape
        own = torch.arange(first_head, first_head + local, device=values.device).view(1, -1, 1, 1)
        positions = torch.arange(tokens, device=values.device)
        rows = (self.samples.view(-1, 1, 1, 1) * heads + own) * tokens + positions.view(1, 1, -1, 1)
        return self(values, layer, "attention", rows * tokens + positions)
