"""The loss of a microbatch if each device of a stage has the logits of some rows of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from sailor_runtime.training.model.tensor_parallel import TensorParallel

# The most logits of a device at a time: 512 MiB in single precision. Fewer make products too small.
CHUNK_ELEMENTS = 2**27

# Returns the loss sum of hidden states and targets.
LossOf = Callable[[Tensor, Tensor], Tensor]


def vocabulary_loss(
    logits: Tensor, targets: Tensor, weight: float, vocabulary: int, parallel: TensorParallel
) -> Tensor:
    """Return the weighted sum of the tokens' losses, summed in at least single precision."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if parallel.size == 1:
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return losses * weight
    logits = logits - parallel.maximum(logits.detach().amax(-1)).unsqueeze(-1)
    partition = parallel.leave(logits.exp().sum(-1)).log()
    start = vocabulary * parallel.index // parallel.size
    local = (targets >= start) & (targets < start + logits.shape[-1])
    rows = torch.where(local, targets - start, 0)
    chosen = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1)
    return (partition - parallel.leave(chosen * local.to(chosen.dtype))).sum() * weight


def loss_in_chunks(loss_of: LossOf, value: Tensor, targets: Tensor, trained: Sequence[Tensor], rows: int) -> Tensor:
    """Return the loss sum of hidden states [samples, tokens, hidden], in chunks of tokens if there are many logits.

    `trained`: the parameters that `loss_of` uses; `rows`: of logits per token on this device. Every rank of a stage
    cuts equally.
    """
    samples, tokens, _ = value.shape
    # Shares of the vocabulary may differ by a row, and the chunks may not.
    length = max(1, CHUNK_ELEMENTS // (samples * rows))
    if length >= tokens:
        return loss_of(value, targets)
    chunked: Tensor = _Chunks.apply(loss_of, targets, length, value, *trained)
    return chunked


class _Chunks(Function):
    """Computes each chunk's gradients with its loss: backward passes begin at the loss, whose gradient is 1."""

    @staticmethod
    def forward(ctx: Any, loss_of: LossOf, targets: Tensor, length: int, value: Tensor, *trained: Tensor) -> Tensor:
        total = None
        gradients = [torch.zeros_like(value) if value.requires_grad else None]
        # Adding many chunks in 16 bits would lose the small ones.
        gradients += [
            torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32)) if each.requires_grad else None
            for each in trained
        ]
        for first in range(0, value.shape[1], length):
            chunk = slice(first, first + length)
            part = value[:, chunk].detach().requires_grad_(value.requires_grad)
            wanted = [each for each in (part, *trained) if each.requires_grad]
            with torch.enable_grad():
                loss = loss_of(part, targets[:, chunk])
            found = iter(torch.autograd.grad(loss, wanted)) if wanted else iter(())
            for number, gradient in enumerate(gradients):
                if gradient is not None:
                    (gradient[:, chunk] if number == 0 else gradient).add_(next(found))
            total = loss.detach() if total is None else total + loss.detach()
        ctx.save_for_backward(
            *(
                None if gradient is None else gradient.to(each.dtype)
                for gradient, each in zip(gradients, (value, *trained), strict=True)
            )
        )
        assert total is not None
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *ctx.saved_tensors)
