"""The benchmark's decoder as ordinary modules: what the baselines train, layer for layer the runtime's GPT-2."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's customary name
from torch import Tensor, nn

from sailor_runtime.spec import ModelSpec


class Embedding(nn.Module):
    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions = nn.Embedding(model.max_positions, model.hidden_size)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.01)

    def forward(self, indices: Tensor) -> Tensor:
        value: Tensor = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        return value


class Block(nn.Module):
    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        hidden = model.hidden_size
        self.heads = model.heads
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, model.ffn_size), nn.Linear(model.ffn_size, hidden)
        for part in (self.query, self.key, self.value, self.out, self.up, self.down):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    def forward(self, value: Tensor) -> Tensor:
        samples, tokens, hidden = value.shape
        normed = self.first(value)
        queries, keys, values = (
            part(normed).view(samples, tokens, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        value = value + self.out(mixed.transpose(1, 2).reshape(samples, tokens, hidden))
        wide = F.gelu(self.up(self.second(value)), approximate="tanh")
        result: Tensor = value + self.down(wide)
        return result


class Head(nn.Module):
    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(model.hidden_size)
        self.logits = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        nn.init.normal_(self.logits.weight, std=0.02)

    def forward(self, value: Tensor) -> Tensor:
        logits: Tensor = self.logits(self.norm(value))
        return logits


def layers(model: ModelSpec) -> list[nn.Module]:
    return [Embedding(model), *(Block(model) for _ in range(model.blocks)), Head(model)]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Return the optimizer's groups as the runtime makes them: only matrices decay."""
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
