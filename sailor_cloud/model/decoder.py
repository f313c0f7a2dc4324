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

    @property
    def layers(self) -> int:
        return self.blocks + 2
