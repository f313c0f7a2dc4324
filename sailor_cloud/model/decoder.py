"""The sizes of a decoder-only transformer, as far as time, memory and traffic depend on them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Model families by their Hugging Face `model_type`."""

    GPT2 = "gpt2"
    GPT_NEO = "gpt_neo"
    OPT = "opt"
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"


class Activation(StrEnum):
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    RELU = "relu"
    SILU = "silu"


class RopeKind(StrEnum):
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How rotary positions are stretched; turns and positions are for llama3 alone."""

    kind: RopeKind
    factor: float
    low_turns: float = 1.0
    high_turns: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a decoder computes, as far as neither time nor memory depends on it.

    `windows` has one number per block: how many tokens back it attends, itself included, or 0 for all. `rope_theta` is
    None for learned positions.
    """

    activation: Activation
    norm_epsilon: float
    rope_theta: float | None
    rope_scaling: RopeScaling | None
    windows: tuple[int, ...]
    scaled_attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder with `blocks` transformer blocks, hence `blocks + 2` layers.

    Layer 0 is the embedding, 1..blocks are the blocks, blocks + 1 is the final norm and head. `embedding_size` differs
    from `hidden_size` where a projection stands between them (OPT-350m). `position_rows` is 0 for rotary positions.
    """

    name: str
    family: Family
    vocab_size: int
    hidden_size: int
    blocks: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    max_positions: int
    position_rows: int
    embedding_size: int
    gated_mlp: bool
    rms_norm: bool
    norm_first: bool
    final_norm: bool
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    tied_head: bool
    form: Form

    @property
    def layers(self) -> int:
        return self.blocks + 2
