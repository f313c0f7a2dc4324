"""A user's own layered module: whole, with low-rank adapters beside frozen weights, and with a running mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, HIDDEN, HEADS, BLOCKS, RANK = 64, 24, 6, 4, 3


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(16, HIDDEN)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head_dim = HIDDEN // HEADS
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, value: Tensor) -> Tensor:
        shape = (*value.shape[:2], -1, self.head_dim)
        parts = [part(value).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, adapters: bool) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = Attention()
        self.wide, self.narrow = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.drop = nn.Dropout(0.5)
        self.gate = nn.Parameter(torch.tensor(0.5))
        if adapters:
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            self.down, self.up = nn.Linear(HIDDEN, RANK, bias=False), nn.Linear(RANK, 4 * HIDDEN, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        value = value + self.drop(self.attention(self.norm(value)))
        normed = self.norm_2(value)
        wide = self.wide(normed)
        if hasattr(self, "down"):
            wide = wide + self.up(self.down(normed))
        return value + self.gate * self.narrow(functional.gelu(wide))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.logits = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        return self.logits(self.norm(value))


def build(adapters: bool = False) -> SimpleNamespace:
    embedding, head = Embedding(), Head()
    head.logits.weight = embedding.tokens.weight
    if adapters:
        for module in (embedding, head):
            for parameter in module.parameters():
                parameter.requires_grad_(False)
    modules = [embedding, *(Block(adapters) for _ in range(BLOCKS)), head]
    plan = {
        **{f"layers.*.attention.{name}": "colwise" for name in ("query", "key", "value")},
        "layers.*.attention.out": "rowwise",
        "layers.*.wide": "colwise",
        "layers.*.narrow": "rowwise",
    }
    if adapters:
        plan["layers.*.up"] = "colwise"
    return SimpleNamespace(layers=lambda: modules, tp_plan=plan, loss=loss)


def build_with_adapters() -> SimpleNamespace:
    return build(adapters=True)


class Centred(nn.Module):
    """Subtracts a running mean that its forward pass updates."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("mean", torch.zeros(HIDDEN))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))

    def forward(self, value: Tensor) -> Tensor:
        value = self.block(value) - self.mean
        self.mean.data.mul_(0.5).add_(value.detach().mean((0, 1)), alpha=0.5)
        return value


def build_with_running_mean() -> SimpleNamespace:
    built = build()
    first, *rest = built.layers()
    modules = [first, Centred(rest[0]), *rest[1:]]
    return SimpleNamespace(layers=lambda: modules, tp_plan={}, loss=built.loss)


def loss(output: Tensor, batch: Any) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), batch.targets.flatten())


def with_a_broken_loss() -> SimpleNamespace:
    built = build()
    built.loss = lambda output, batch: output.sum(-1)
    return built


def with_a_broken_block() -> SimpleNamespace:
    built = build()
    built.layers()[1].wide = nn.Linear(HIDDEN + 1, 4 * HIDDEN)
    return built
