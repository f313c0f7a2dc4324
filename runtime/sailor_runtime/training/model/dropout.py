"""Stateless dropout: whether an element is dropped depends only on its position, so every plan drops the same ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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
        # The upper 53 bits are a uniform number between 0 and 1.
        uniform = _shift(_mixed(elements * _signed(_GOLDEN) + key), 11)
        kept = uniform >= math.ceil(self.probability * 2.0**53)
        return values * kept.to(values.dtype) / (1.0 - self.probability)

    def hidden(self, values: Tensor, layer: int, site: str) -> Tensor:
        """Drop elements of hidden states of shape [samples, tokens, hidden]."""
        if self.probability == 0.0:
            return values
        _, tokens, hidden = values.shape
        rows = self.samples.view(-1, 1, 1) * tokens + torch.arange(tokens, device=values.device).view(1, -1, 1)
        return self(values, layer, site, rows * hidden + torch.arange(hidden, device=values.device))

    def attention(
        self, values: Tensor, layer: int, site: str, *, heads: int, first_head: int, tokens: int, row: int, column: int
    ) -> Tensor:
        """Drop attention weights of shape [samples, local heads, queries, keys].

        They begin at `row` and `column` among all `tokens`, and at `first_head` among all `heads`.
        """
        if self.probability == 0.0:
            return values
        _, local, queries, keys = values.shape
        device = values.device
        own = torch.arange(first_head, first_head + local, device=device).view(1, -1, 1, 1)
        rows = torch.arange(row, row + queries, device=device).view(1, 1, -1, 1)
        rows = (self.samples.view(-1, 1, 1, 1) * heads + own) * tokens + rows
        return self(values, layer, site, rows * tokens + torch.arange(column, column + keys, device=device))


class DropoutMode(TorchFunctionMode):
    """Replaces torch's dropout in a model's modules by `dropout`, which ignores the modules' own probabilities.

    A dropout site is identified by its order in the layer. Values with four dimensions are attention weights. They
    belong to this rank's heads; under tensor parallelism these start at `first_head` of all `heads`.
    """

    _entered: ClassVar[list[DropoutMode]] = []

    def __init__(self, dropout: Dropout, heads: int, first_head: int) -> None:
        super().__init__()
        self._dropout = dropout
        self._heads, self._first_head = heads, first_head
        self._layer, self._site = 0, 0

    def __enter__(self) -> Self:
        self._entered.append(self)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._entered.pop()

    @classmethod
    def current(cls) -> DropoutMode | None:
        """Return the active instance."""
        return cls._entered[-1] if cls._entered else None

    def begin(self, layer: int) -> None:
        """Announce the layer that runs next."""
        self._layer, self._site = layer, 0

    def attention(self, local_heads: int, tokens: int) -> Callable[[Tensor, int, int], Tensor]:
        """Return a function of a part of attention weights, its first row and column; it drops at the next site."""
        first_head = 0 if local_heads == self._heads else self._first_head
        layer, site = self._layer, self._next()
        return lambda values, row, column: self._dropout.attention(
            values, layer, site, heads=self._heads, first_head=first_head, tokens=tokens, row=row, column=column
        )

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.dropout:
            return function(*args, **(kwargs or {}))
        values: Tensor = args[0] if args else kwargs["input"]
        if values.dim() == 4:
            return self.attention(values.shape[1], values.shape[2])(values, 0, 0)
        shape = values.shape
        states = values.view(len(self._dropout.samples), -1, shape[-1])
        return self._dropout.hidden(states, self._layer, self._next()).view(shape)

    def _next(self) -> str:
        self._site += 1
        return f"{self._site - 1}"
