"""Layered modules with one property each that plans depend on."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from factories.layered_module import BLOCKS, HIDDEN, Block, Embedding, Head, loss


def _of(layers: list[nn.Module]) -> SimpleNamespace:
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
