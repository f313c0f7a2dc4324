"""Activations that the formulas count against what torch keeps for the backward pass."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's customary name
from torch import Tensor, nn

from sailor_cloud.model.decoder import Decoder
from sailor_cloud.workload import Attention, decoder_from_config, layer_costs

HIDDEN, HEADS, TOKENS, SAMPLES, VOCABULARY = 64, 4, 96, 2, 320
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": TOKENS,
}
CONFIGS = {
    "gpt2": {"model_type": "gpt2", **COMMON},
    "opt": {"model_type": "opt", "ffn_dim": 4 * HIDDEN, **COMMON},
    "llama": {
        "model_type": "llama",
        "intermediate_size": 3 * HIDDEN,
        **COMMON,
    },
}
SHARED_KEYS = {**CONFIGS["llama"], "num_key_value_heads": HEADS // 2}


class Block(nn.Module):
    """A transformer block as the families write it."""

    def __init__(self, sizes: Decoder, attention: Attention) -> None:
        super().__init__()
        self.sizes, self.attention = sizes, attention
        width = sizes.kv_heads * sizes.head_size
        # Without a fused kernel, as on CPU, torch's RMSNorm keeps an extra tensor; it is not what is counted here.
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k, self.v = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, width), nn.Linear(HIDDEN, width)
        self.out, self.up = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, sizes.ffn_size)
        self.gate, self.down = nn.Linear(HIDDEN, sizes.ffn_size), nn.Linear(sizes.ffn_size, HIDDEN)

    def forward(self, value: Tensor) -> Tensor:
        normed = self.first(value)
        queries, keys, values = (
            part(normed).view(SAMPLES, TOKENS, -1, self.sizes.head_size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        if self.attention is Attention.MEMORY_EFFICIENT and len(keys[0]) < len(queries[0]):
            # This kernel takes as many keys as queries.
            keys, values = (part.repeat_interleave(len(queries[0]) // len(part[0]), 1) for part in (keys, values))
        if self.attention is not Attention.PLAIN:
            shared = len(keys[0]) < len(queries[0])
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=shared)
        else:
            scores = queries @ keys.transpose(-1, -2) / math.sqrt(self.sizes.head_size)
            mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(mask, -math.inf).softmax(-1) @ values
        value = value + self.out(mixed.transpose(1, 2).reshape(SAMPLES, TOKENS, -1))
        normed = self.second(value)
        match self.sizes.family:
            case "gpt2":
                wide = F.gelu(self.up(normed), approximate="tanh")
            case "opt":
                wide = F.relu(self.up(normed))
            case _:
                wide = F.silu(self.gate(normed)) * self.up(normed)
        return value + self.down(wide)


def kept_elements(module: nn.Module, *inputs: Tensor) -> float:
    """Floating-point elements that torch holds after the forward pass, parameters left out, per sample."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    held: dict[int, Tensor] = {}

    def pack(value: Tensor) -> Tensor:
        if value.is_floating_point() and value.untyped_storage().data_ptr() not in own:
            held[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        module(*inputs)
    return sum(value.untyped_storage().nbytes() / 4 for value in held.values()) / SAMPLES


@pytest.mark.parametrize("attention", Attention)
@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_a_block_keeps_what_is_counted(family: str, attention: Attention) -> None:
    sizes = decoder_from_config(CONFIGS[family], name=family)
    counted = layer_costs(sizes, TOKENS, 1, attention=attention).activation_elements[1]
    inputs = torch.randn(SAMPLES, TOKENS, HIDDEN, requires_grad=True)
    # The norms keep a mean and a deviation per token, which the formula leaves out.
    assert kept_elements(Block(sizes, attention), inputs) == pytest.approx(counted + 4 * TOKENS, rel=0.005)


@pytest.mark.parametrize("attention", [Attention.FLASH, Attention.MEMORY_EFFICIENT])
def test_a_block_with_shared_keys_keeps_what_is_counted(attention: Attention) -> None:
    sizes = decoder_from_config(SHARED_KEYS, name="shared")
    counted = layer_costs(sizes, TOKENS, 1, attention=attention).activation_elements[1]
    inputs = torch.randn(SAMPLES, TOKENS, HIDDEN, requires_grad=True)
    assert kept_elements(Block(sizes, attention), inputs) == pytest.approx(counted + 4 * TOKENS, rel=0.005)


def test_a_head_keeps_its_probabilities_and_the_peak_holds_their_gradient_too() -> None:
    sizes = decoder_from_config(CONFIGS["gpt2"], name="gpt2")
    costs = layer_costs(sizes, TOKENS, 1)
    norm, logits = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.logits = norm, logits

        def forward(self, value: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(self.norm(value)).flatten(0, 1), targets.flatten())

    inputs = torch.randn(SAMPLES, TOKENS, HIDDEN, requires_grad=True)
    held = kept_elements(Head(), inputs, torch.randint(VOCABULARY, (SAMPLES, TOKENS)))
    peak = costs.activation_elements[-1] + costs.loss_elements[-1]
    assert held + TOKENS * VOCABULARY == pytest.approx(peak, rel=0.01)
