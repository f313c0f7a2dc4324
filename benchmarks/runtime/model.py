"""The benchmark's decoder for the baselines: transformers' GPT-2 blocks, as the runtime trains them, in a row."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - torch's customary name
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from sailor_runtime.spec import ModelSpec


class Embedding(nn.Module):
    def __init__(self, tokens: nn.Embedding, positions: nn.Embedding) -> None:
        super().__init__()
        self.tokens, self.positions = tokens, positions

    def forward(self, indices: Tensor) -> Tensor:
        value: Tensor = self.tokens(indices) + self.positions.weight[: indices.shape[1]]
        return value


def layers(model: ModelSpec) -> list[nn.Module]:
    config = GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.max_positions,
        n_embd=model.hidden_size,
        n_layer=model.blocks,
        n_head=model.heads,
        n_inner=model.ffn_size,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    whole = GPT2LMHeadModel(config)
    decoder = whole.transformer
    return [Embedding(decoder.wte, decoder.wpe), *decoder.h, nn.Sequential(decoder.ln_f, whole.lm_head)]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def groups(parameters: list[nn.Parameter], weight_decay: float) -> list[dict[str, object]]:
    """Return the optimizer's groups as the runtime makes them: only matrices decay."""
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() <= 1], "weight_decay": 0.0},
    ]
