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
    QWEN3 = "qwen3"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3_text"
    PHI3 = "phi3"
    OLMO2 = "olmo2"
    GRANITE = "granite"
    MIXTRAL = "mixtral"
    QWEN2_MOE = "qwen2_moe"
    QWEN3_MOE = "qwen3_moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The MLP of a mixture of experts: `count` of width `size`, of which each token uses `per_token`.

    `shared_size` is the width of an expert that every token uses, 0 for none. `whole`: tensor-parallel devices divide
    the experts among them instead of cutting each.
    """

    count: int
    per_token: int
    size: int
    shared_size: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameters of each layer of a user's module on one of `tp` devices, and how many of them train.

    `tied` are those of the head that it shares with the embedding; `tied_trainable` are those of them that train.
    """

    tp: int
    parameters: tuple[int, ...]
    trainable: tuple[int, ...]
    tied: int
    tied_trainable: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDropout:
    """A dropout that a model brings along, in words. Training never applies it; its own may `replace` it."""

    text: str
    replaced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder with `blocks` transformer blocks, hence `blocks + 2` layers.

    Layer 0 is the embedding, 1..blocks are the blocks, blocks + 1 is the final norm and head. `embedding_size` differs
    from `hidden_size` if there is a projection between them (OPT-350m). `position_rows` is 0 for rotary positions.
    `config` is the rest of the Hugging Face configuration as JSON: neither time nor memory depends on it.
    `block_norms`: the number of a block's norms over hidden states. `qk_norm_size`: the weights of its norms over
    queries and keys. With `whole_attention` every tensor-parallel device computes all heads. With `keeps_scores` the
    family's attention keeps its scores in every program: neither a fused kernel nor blocks can replace it. `module`
    names a user's function that builds the layers; `counted` are its parameters at the degrees that cut it. `dropouts`
    are those with a probability above 0 in its layers or in the configuration.
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
    final_norm: bool
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    tied_head: bool
    config: str
    block_norms: int = 2
    qk_norm_size: int = 0
    whole_attention: bool = False
    keeps_scores: bool = False
    experts: Experts | None = None
    module: str | None = None
    counted: tuple[Counted, ...] = ()
    dropouts: tuple[OwnDropout, ...] = ()

    @property
    def layers(self) -> int:
        return self.blocks + 2

    @property
    def active_ffn_size(self) -> int:
        """The MLP width that one token uses."""
        if self.experts is None:
            return self.ffn_size
        return self.experts.per_token * self.experts.size + self.experts.shared_size

    def counted_at(self, tp: int) -> Counted | None:
        """Return the counts of a user's module; None for a family."""
        return next((counted for counted in self.counted if counted.tp == tp), None)
