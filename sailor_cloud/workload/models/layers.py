"""Counts parameters, FLOPs and activations of every layer of a decoder at a tensor-parallel degree."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.decoder import Decoder, Family

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Families whose norms multiply by their weight in single precision.
_WIDE_NORMS = (Family.GEMMA2, Family.GEMMA3, Family.OLMO2)


class Attention(StrEnum):
    """Whether attention scores are kept for the backward pass (plain) or recomputed in blocks (the others).

    The memory-efficient kernel also needs a copy of shared keys and values for each head.
    """

    PLAIN = "plain"
    FLASH = "flash"
    MEMORY_EFFICIENT = "memory-efficient"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Per layer and device, for one sample; every array has shape [layers].

    `activation_elements` stay from forward to backward. With recomputation only `recomputed_elements` stay, and the
    activations of one layer at a time return. `loss_elements` are held in fp32 at every precision. `output_elements` is
    the next layer's input; it is the same on every tensor-parallel device. `parameters` counts a tied head's weight in
    the embedding and in the head; a device with both layers keeps it once, that is `tied_parameters` fewer. `trainable`
    are those with gradients, `tied_trainable` such tied ones.
    """

    tp: int
    parameters: Ints
    tied_parameters: int
    trainable: Ints
    tied_trainable: int
    matmul_flops: Floats
    forward_flops: Floats
    backward_flops: Floats
    score_elements: Floats
    activation_elements: Floats
    recomputed_elements: Floats
    loss_elements: Floats
    output_elements: Floats

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(array := getattr(self, each.name), np.ndarray):
                array.flags.writeable = False


def parameter_count(decoder: Decoder) -> int:
    """Return the number of parameters of a decoder, with a tied head counted once."""
    if (counted := decoder.counted_at(1)) is not None:
        return sum(counted.parameters) - counted.tied
    tied = _head_weight(decoder, 1) if decoder.tied_head else 0
    return _embedding(decoder, 1) + decoder.blocks * _block(decoder, 1) + _head(decoder, 1) - tied


def gathered_share(decoder: Decoder) -> tuple[float, float]:
    """Return how many hidden states tensor parallelism gathers in a block besides its all-reduces, for each pass.

    If every device computes all heads, it gathers queries, keys and values, and in the backward pass the gradient of
    the heads' outputs.
    """
    if not decoder.whole_attention:
        return 0.0, 0.0
    queries, keys = decoder.heads * decoder.head_size, decoder.kv_heads * decoder.head_size
    return (queries + 2 * keys) / decoder.hidden_size, queries / decoder.hidden_size


@lru_cache(maxsize=1024)
def layer_costs(
    decoder: Decoder,
    sequence_length: int,
    tp: int,
    *,
    attention: Attention = Attention.PLAIN,
    sequence_parallel: bool = False,
    gate_copies: int = 4,
    module_bytes: int = 0,
) -> LayerCosts:
    """Return the cost of every layer on one of `tp` devices.

    `sequence_parallel`: the devices also divide the work between the cut matrices. `gate_copies`: tensors of the MLP's
    width that a gated MLP keeps; 3 if one kernel computes the gate's activation and the product. `module_bytes`: bytes
    of an element if norms are transformers' modules instead of single kernels. Such norms keep more tensors, some of
    them in single precision; what the modules of Phi 3 and GPT-Neo keep beyond others is included.

    Weights of attention, MLP, embedding and head are cut over the devices, the vocabulary rounded up to whole rows
    each; norms, positions and biases after a reduction are on all of them. Dropout masks and the norms' statistics are
    left out (below 1 % of a block at hidden sizes from 1024). Results are cached, since searches need the same costs
    thousands of times; their arrays are read-only.
    """
    tokens = float(sequence_length)
    hidden = tokens * decoder.hidden_size
    shared = tp if sequence_parallel else 1
    vocabulary = tokens * -(-decoder.vocab_size // tp)
    matmul, scores = _block_flops(decoder, tokens, tp)
    if attention is not Attention.PLAIN:
        scores /= 2.0  # blocks above the causal diagonal are skipped
    score_elements = decoder.heads * tokens * tokens / _attention_tp(decoder, tp)
    plain = attention is Attention.PLAIN or decoder.keeps_scores
    kept_scores = score_elements if plain else score_elements / tokens
    kept = _block_kept(decoder, tokens, tp, shared, gate_copies) + kept_scores
    kept += _modules_kept(decoder, tokens, tp, module_bytes)
    if attention is Attention.MEMORY_EFFICIENT:
        kept += 2 * (decoder.heads - decoder.kv_heads) * decoder.head_size * tokens / _attention_tp(decoder, tp)
    head_flops = 2.0 * vocabulary * decoder.embedding_size + _projection_flops(decoder, tokens)
    # Fused attention recomputes its scores in the backward pass.
    backward_scores = scores * (2.0 if attention is Attention.PLAIN else 2.5)
    projected = tokens * decoder.embedding_size if _projected(decoder) else 0.0
    head_kept = _head_kept(decoder, tokens) / shared + vocabulary
    parameters = _per_layer_int(decoder, _embedding(decoder, tp), _block(decoder, tp), _head(decoder, tp))
    tied = _head_weight(decoder, tp) if decoder.tied_head else 0
    counted = decoder.counted_at(tp)
    return LayerCosts(
        tp=tp,
        parameters=parameters if counted is None else np.array(counted.parameters, dtype=np.int64),
        tied_parameters=tied if counted is None else counted.tied,
        trainable=parameters if counted is None else np.array(counted.trainable, dtype=np.int64),
        tied_trainable=tied if counted is None else counted.tied_trainable,
        matmul_flops=_per_layer(decoder, _projection_flops(decoder, tokens), matmul, head_flops),
        forward_flops=_per_layer(decoder, _projection_flops(decoder, tokens), matmul + scores, head_flops),
        backward_flops=_per_layer(
            decoder, 2.0 * _projection_flops(decoder, tokens), 2.0 * matmul + backward_scores, 2.0 * head_flops
        ),
        score_elements=_per_layer(decoder, 0.0, score_elements, 0.0),
        activation_elements=_per_layer(decoder, projected, kept, head_kept),
        recomputed_elements=_per_layer(
            decoder, projected, hidden / shared, _head_kept(decoder, tokens) / shared + vocabulary
        ),
        loss_elements=_per_layer(decoder, 0.0, 0.0, vocabulary),
        output_elements=_per_layer(decoder, hidden, hidden, 0.0),
    )


def _per_layer(decoder: Decoder, embedding: float, block: float, head: float) -> Floats:
    return np.array([embedding, *[block] * decoder.blocks, head], dtype=np.float64)


def _per_layer_int(decoder: Decoder, embedding: int, block: int, head: int) -> Ints:
    return np.array([embedding, *[block] * decoder.blocks, head], dtype=np.int64)


def _projected(decoder: Decoder) -> bool:
    return decoder.embedding_size != decoder.hidden_size


def _projection_flops(decoder: Decoder, tokens: float) -> float:
    return 2.0 * tokens * decoder.embedding_size * decoder.hidden_size if _projected(decoder) else 0.0


def _norm(decoder: Decoder) -> int:
    return decoder.hidden_size * (1 if decoder.rms_norm else 2)


def _vocabulary_rows(decoder: Decoder, tp: int) -> int:
    return -(-decoder.vocab_size // tp)


def _embedding(decoder: Decoder, tp: int) -> int:
    projection = decoder.embedding_size * decoder.hidden_size if _projected(decoder) else 0
    positions = decoder.position_rows * decoder.hidden_size
    return _vocabulary_rows(decoder, tp) * decoder.embedding_size + positions + projection


def _head(decoder: Decoder, tp: int) -> int:
    projection = decoder.embedding_size * decoder.hidden_size if _projected(decoder) else 0
    return (_norm(decoder) if decoder.final_norm else 0) + projection + _head_weight(decoder, tp)


def _head_weight(decoder: Decoder, tp: int) -> int:
    return _vocabulary_rows(decoder, tp) * decoder.embedding_size


def _block(decoder: Decoder, tp: int) -> int:
    hidden, ffn = decoder.hidden_size, decoder.ffn_size // tp
    query = decoder.heads * decoder.head_size // tp
    key_value = 2 * decoder.kv_heads * decoder.head_size // tp
    attention = hidden * (query + key_value) + query * hidden + decoder.qk_norm_size
    attention += query + key_value if decoder.qkv_bias else 0
    attention += hidden if decoder.attention_output_bias else 0
    columns = 2 if decoder.gated_mlp else 1
    mlp = (columns + 1) * hidden * ffn + (columns * ffn + hidden if decoder.mlp_bias else 0)
    if (experts := decoder.experts) is not None:
        # The router and the gate of a shared expert are on every device.
        mlp = (columns + 1) * hidden * (experts.count * experts.size + experts.shared_size) // tp
        mlp += experts.count * hidden + (hidden if experts.shared_size else 0)
    return attention + mlp + decoder.block_norms * _norm(decoder)


def _block_flops(decoder: Decoder, tokens: float, tp: int) -> tuple[float, float]:
    query = decoder.heads * decoder.head_size
    key_value = 2 * decoder.kv_heads * decoder.head_size
    weights = decoder.hidden_size * (2 * query + key_value)
    weights += (3 if decoder.gated_mlp else 2) * decoder.hidden_size * decoder.active_ffn_size
    return 2.0 * tokens * weights / tp, 4.0 * tokens * tokens * query / _attention_tp(decoder, tp)


def _attention_tp(decoder: Decoder, tp: int) -> int:
    """Return the number of devices over which the heads are cut."""
    return 1 if decoder.whole_attention else tp


def _block_kept(decoder: Decoder, tokens: float, tp: int, shared: int, gate_copies: int) -> float:
    """Elements kept without scores: block input, two norm outputs and the middle residual; then q, k, v, context, MLP.

    ReLU's output serves its backward pass and the next product; GELU keeps input and output. A gated MLP keeps its
    gate, the gate's activation, the other branch and their product, or all but the second.
    """
    between = (2 + decoder.block_norms) * decoder.hidden_size
    attention = 2 * decoder.heads * decoder.head_size + 2 * decoder.kv_heads * decoder.head_size
    attention += (decoder.heads + decoder.kv_heads) * decoder.head_size if decoder.qk_norm_size else 0
    copies = gate_copies if decoder.gated_mlp else 1 if decoder.family is Family.OPT else 2
    kept = between / shared + attention / _attention_tp(decoder, tp) + copies * decoder.active_ffn_size / tp
    if decoder.experts is not None:
        # For each expert of a token on this device, a copy of its hidden state goes in, and one returns.
        here = decoder.experts.per_token / (tp if decoder.experts.whole else 1)
        kept += 2 * here * decoder.hidden_size + decoder.experts.count
        # A shared expert's output is multiplied by its gate.
        kept += decoder.hidden_size if decoder.experts.shared_size else 0
    return tokens * kept


def _modules_kept(decoder: Decoder, tokens: float, tp: int, element_bytes: int) -> float:
    """Elements that transformers' modules keep beyond those of fused kernels; `element_bytes` is `module_bytes`."""
    if not element_bytes:
        return 0.0
    cut, half = _attention_tp(decoder, tp), element_bytes < 4
    queries, keys = decoder.heads * decoder.head_size / cut, decoder.kv_heads * decoder.head_size / cut
    kept = 0.0
    if decoder.family is Family.PHI3:
        # Values are a view that keeps the complete packed projection. Partly rotated queries order attention's output
        # by head, so the projection after it keeps a reordered copy.
        kept += queries + keys + queries
    if decoder.keeps_scores and half:
        # GPT-Neo computes scores in single precision, from queries and keys in it, and casts the probabilities back.
        kept += queries + keys + 2.0 * decoder.heads * tokens / cut
    if decoder.rms_norm:
        normed = decoder.block_norms * decoder.hidden_size + (queries + keys) * bool(decoder.qk_norm_size)
        # A norm keeps its scaled input. In half precision it keeps both in single precision, or scales a copy in half.
        copies = (4 if decoder.family in _WIDE_NORMS else 3) if half else 1
        kept += copies * normed
        if half:
            # Then nothing else keeps a norm's input, but the block's input stays between blocks.
            kept -= normed - (0 if decoder.family is Family.OLMO2 else decoder.hidden_size)
    return tokens * kept


def _head_kept(decoder: Decoder, tokens: float) -> float:
    return tokens * (2 * decoder.hidden_size if decoder.final_norm else decoder.hidden_size)
