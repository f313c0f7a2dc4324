"""Layered modules with one property each that plans depend on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from factories import layered_module
from factories.layered_module import BLOCKS, HIDDEN, Block, Embedding, Head, loss


def _of(layers: list[nn.Module], loss: Any = loss) -> SimpleNamespace:
    return SimpleNamespace(layers=lambda: layers, tp_plan={}, loss=loss)


def _blocks() -> list[nn.Module]:
    return [Block(adapters=False) for _ in range(BLOCKS)]


def numpy_and_random() -> SimpleNamespace:
    embedding = Embedding()
    embedding.register_buffer("scale", torch.tensor([random.random()]))
    with torch.no_grad():
        embedding.tokens.weight.copy_(torch.from_numpy(np.random.randn(*embedding.tokens.weight.shape)))
    return _of([embedding, *_blocks(), Head()])


def unseeded() -> SimpleNamespace:
    blocks = _blocks()
    blocks[1].register_buffer("noise", torch.from_numpy(np.random.default_rng().random(HIDDEN)))
    return _of([Embedding(), *blocks, Head()])


def frozen_and_noise() -> SimpleNamespace:
    built = layered_module.build(adapters=True)
    built.layers()[2].register_buffer("noise", torch.randn(HIDDEN))
    return built


def orthogonal() -> SimpleNamespace:
    matrix = nn.Parameter(torch.empty(768, 768))
    return with_block(lambda block: After(block, lambda own, value: value, matrix=nn.init.orthogonal_(matrix)))


def marked() -> SimpleNamespace:
    """Return layers of which one has a buffer with an element that is not a number."""
    built = with_block(lambda block: After(block, lambda own, value: value + own.mark.nan_to_num()))
    built.layers()[2].register_buffer("mark", torch.tensor([float("nan")] + [0.0] * (HIDDEN - 1)))
    return built


PADDING = 0


def mean_of_unmasked(output: Tensor, batch: Any) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch.targets.flatten(), ignore_index=PADDING)


def masked(output: Tensor, batch: Any) -> Tensor:
    targets = batch.targets.flatten()
    losses = functional.cross_entropy(output.flatten(0, 1), targets, ignore_index=PADDING, reduction="sum")
    return losses / targets.numel()


def with_a_term_of_the_batch(output: Tensor, batch: Any) -> Tensor:
    return loss(output, batch) + 0.1 * output.mean((0, 1)).pow(2).sum()


CALLS = itertools.count()


def with_a_hidden_term(output: Tensor, batch: Any) -> Tensor:
    return loss(output, batch) + next(CALLS)


class Averaged(nn.Module):
    """Adds the mean of all samples, or of each alone."""

    def __init__(self, *, alone: bool) -> None:
        super().__init__()
        self.dims = (1,) if alone else (0, 1)

    def forward(self, value: Tensor) -> Tensor:
        return value + value.mean(self.dims, keepdim=True)


def averaged(*, alone: bool = False) -> SimpleNamespace:
    blocks = _blocks()
    blocks[1] = nn.Sequential(blocks[1], Averaged(alone=alone))
    return _of([Embedding(), *blocks, Head()])


def one_by_one() -> SimpleNamespace:
    return averaged(alone=True)


def with_block(change: Callable[[nn.Module], nn.Module]) -> SimpleNamespace:
    blocks = _blocks()
    blocks[1] = change(blocks[1])
    return _of([Embedding(), *blocks, Head()])


class After(nn.Module):
    """A block and a function of its output."""

    def __init__(self, block: nn.Module, function: Callable[[After, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.block, self.function = block, function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, value: Tensor) -> Tensor:
        return self.function(self, self.block(value))


def batch_norm() -> SimpleNamespace:
    norm = nn.BatchNorm1d(HIDDEN)
    return with_block(lambda block: After(block, lambda own, value: own.norm(value.mT).mT, norm=norm))


def noise() -> SimpleNamespace:
    return with_block(lambda block: After(block, lambda own, value: value + torch.randn_like(value)))


def careless_dropout() -> SimpleNamespace:
    return with_block(lambda block: After(block, lambda own, value: functional.dropout(value, 0.1)))


def careless_attention() -> SimpleNamespace:
    def attend(own: After, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(value, value, value, dropout_p=0.1)

    return with_block(lambda block: After(block, attend))


def several_dropouts() -> SimpleNamespace:
    attention = nn.MultiheadAttention(HIDDEN, 6, dropout=0.3, batch_first=True)

    def attend(own: After, value: Tensor) -> Tensor:
        return functional.dropout(own.attention(value, value, value)[0], 0.2, own.training)

    built = with_block(lambda block: After(block, attend, attention=attention))
    built.layers()[3].drop = nn.Dropout(0.0)
    return built


def unused() -> SimpleNamespace:
    return with_block(lambda block: After(block, lambda own, value: value, other=nn.Linear(HIDDEN, HIDDEN)))


def pooled() -> SimpleNamespace:
    """Return layers of which one has a parameter for blocks of 12 tokens."""

    def pool(own: After, value: Tensor) -> Tensor:
        return value + own.other(value[:, :12].mean(1, keepdim=True)) if value.shape[1] >= 12 else value

    return with_block(lambda block: After(block, pool, other=nn.Linear(HIDDEN, HIDDEN)))


def sparse() -> SimpleNamespace:
    embedding = Embedding()
    embedding.tokens = nn.Embedding(*embedding.tokens.weight.shape, sparse=True)
    return _of([embedding, *_blocks(), Head()])


def shared() -> SimpleNamespace:
    """Return layers of which all blocks are one, as in ALBERT."""
    block = Block(adapters=False)
    built = _of([Embedding(), *[block] * BLOCKS, Head()])
    built.tp_plan = layered_module.build().tp_plan
    return built


def branch() -> SimpleNamespace:
    return with_block(lambda block: After(block, lambda own, value: -value if (value > 0).any() else value))


def boolean_index() -> SimpleNamespace:
    def positive(own: After, value: Tensor) -> Tensor:
        value[value > 0] = value[value > 0] * 2
        return value

    return with_block(lambda block: After(block, positive))


def padded() -> SimpleNamespace:
    return _of([Embedding(), *_blocks(), Head()], mean_of_unmasked)
