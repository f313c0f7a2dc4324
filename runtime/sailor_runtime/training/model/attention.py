"""Attention whose memory is linear in the sequence length.

Two of them: fused kernels, and blocks of queries for cases without a fused kernel, which are plan-independent dropout
and capped scores. Of blocks only one's scores exist at a time, and the backward pass recomputes them. Keys and values
that several heads share are not copied for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import Function
from torch.backends import cuda

from sailor_runtime.training.model.dropout import DropoutMode

NAME = "sailor_blocks"
FUSED = "sailor_fused"
# The most scores of a block, of all heads and samples: about 300 MB with their dropout.
BLOCK_ELEMENTS = 2**23


def register() -> None:
    """Register both attentions in transformers under their names."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)
    AttentionInterface.register(FUSED, _fused)
    AttentionMaskInterface.register(FUSED, sdpa_mask)


def _fused(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **rest: Any
) -> tuple[Tensor, None]:
    """Run transformers' `sdpa`, with keys and values copied for each head where torch's fused kernels need that.

    Flash and cuDNN attention share them, but need 16 bits and compute capability 8.0. Elsewhere the memory-efficient
    kernel runs, which does not share them: torch would silently take the one that keeps all scores.
    """
    from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward, use_gqa_in_sdpa

    if use_gqa_in_sdpa(attention_mask, key, value) and not _shares_keys(query, key, value):
        copies = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, copies), repeat_kv(value, copies)
    result: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **rest)[0]
    return result, None


def _shares_keys(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether torch has a fused kernel for heads that share keys; a CPU has none with or without copies."""
    if query.device.type != "cuda":
        return True
    call = cuda.SDPAParams(query, key, value, None, 0.0, True, True)
    return cuda.can_use_flash_attention(call) or cuda.can_use_cudnn_attention(call)


class _Mask:
    """The keys that each query may see, requested by blocks; `function` is transformers' own."""

    def __init__(self, function: Callable[..., Tensor], samples: int, tokens: int, device: torch.device) -> None:
        self._function, self._device = function, device
        self._samples, self.tokens = samples, tokens
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}

    def keys(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of keys that any of some queries sees."""
        if (first, end) not in self._seen:
            # Real numbers on any device, without waiting for one.
            with unset_fake_temporarily():
                seen = self._of(first, end, 0, self.tokens, torch.device("cpu")).flatten(0, -2).any(0).nonzero()
            self._seen[first, end] = (int(seen[0]), int(seen[-1]) + 1)
        return self._seen[first, end]

    def __call__(self, first: int, end: int, first_key: int, end_key: int) -> Tensor:
        """Return what queries see of keys, broadcastable to [samples, heads, queries, keys]."""
        return self._of(first, end, first_key, end_key, self._device)

    def _of(self, first: int, end: int, first_key: int, end_key: int, device: torch.device) -> Tensor:
        queries = torch.arange(first, end, device=device).view(1, 1, -1, 1)
        keys = torch.arange(first_key, end_key, device=device).view(1, 1, 1, -1)
        samples = torch.arange(self._samples, device=device).view(-1, 1, 1, 1)
        return self._function(samples, torch.zeros_like(samples[:1]), queries, keys)


def _mask(
    *, batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], device: Any, **rest: Any
) -> _Mask:
    assert q_length == kv_length
    assert rest.get("attention_mask") is None
    return _Mask(mask_function, batch_size, q_length, device)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: _Mask,
    scaling: float | None = None,
    softcap: float | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Return the mixed values, [samples, tokens, heads, size]; arguments are those of transformers' attentions."""
    dropping = DropoutMode.current()
    block = _Block(
        mask=attention_mask,
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        drop=None if dropping is None else dropping.attention(query.shape[1], query.shape[2]),
    )
    result: Tensor = _Blocks.apply(query, key, value, block)
    return result.transpose(1, 2).contiguous(), None


class _Block:
    """The attention of some queries to the keys that they see."""

    def __init__(
        self,
        *,
        mask: _Mask,
        scaling: float,
        softcap: float | None,
        drop: Callable[[Tensor, int, int], Tensor] | None,
    ) -> None:
        self.mask, self._scaling, self._softcap, self._drop = mask, scaling, softcap, drop

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, first: int, first_key: int) -> Tensor:
        """Return [samples, heads, queries, size]; the given queries and keys start at `first` and `first_key`."""
        samples, heads, queries, size = query.shape
        shared = key.shape[1]
        # Heads that share keys become additional queries of one head.
        grouped = query.reshape(samples, shared, heads // shared * queries, size)
        scores = (grouped @ key.transpose(-1, -2) * self._scaling).view(samples, heads, queries, -1)
        if self._softcap is not None:
            scores = torch.tanh(scores / self._softcap) * self._softcap
        seen = self.mask(first, first + queries, first_key, first_key + key.shape[2])
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1).to(value.dtype)
        if self._drop is not None:
            weights = self._drop(weights, first, first_key)
        return (weights.view(samples, shared, heads // shared * queries, -1) @ value).view(samples, heads, queries, -1)


class _Blocks(Function):
    """All queries, block by block; keeps only queries, keys and values for the backward pass."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, block: _Block) -> Tensor:
        ctx.block = block
        ctx.save_for_backward(query, key, value)
        result = query.new_empty((*query.shape[:-1], value.shape[-1]))
        for rows, columns in _blocks(query, block.mask):
            result[:, :, rows] = block(
                query[:, :, rows], key[:, :, columns], value[:, :, columns], rows.start, columns.start
            )
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value = ctx.saved_tensors
        wide = torch.promote_types(key.dtype, torch.float32)
        of_query = torch.empty_like(query)
        # Many blocks add to the same keys.
        of_key, of_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        for rows, columns in _blocks(query, ctx.block.mask):
            parts = [
                whole[:, :, part].detach().requires_grad_()
                for whole, part in ((query, rows), (key, columns), (value, columns))
            ]
            with torch.enable_grad():
                result = ctx.block(*parts, rows.start, columns.start)
            found = torch.autograd.grad(result, parts, gradient[:, :, rows])
            of_query[:, :, rows] = found[0]
            of_key[:, :, columns] += found[1]
            of_value[:, :, columns] += found[2]
        return of_query, of_key.to(key.dtype), of_value.to(value.dtype), None


def _blocks(query: Tensor, mask: _Mask) -> list[tuple[slice, slice]]:
    """Return blocks of queries, and the keys that they see."""
    samples, heads, tokens, _ = query.shape
    rows = max(1, BLOCK_ELEMENTS // (samples * heads * tokens))
    starts = ((first, min(first + rows, tokens)) for first in range(0, tokens, rows))
    return [(slice(first, end), slice(*mask.keys(first, end))) for first, end in starts]
