"""The loss of a microbatch when each device of a stage has the logits of some rows of the vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel


def vocabulary_loss(logits: Tensor, microbatch: Microbatch, vocabulary: int, parallel: TensorParallel) -> Tensor:
    """Return the weighted sum of the tokens' losses, summed in at least single precision."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if parallel.size == 1:
        losses = F.cross_entropy(logits.flatten(0, 1), microbatch.targets.flatten(), reduction="sum")
        return losses * microbatch.weight
    logits = logits - parallel.maximum(logits.detach().amax(-1)).unsqueeze(-1)
    partition = parallel.leave(logits.exp().sum(-1)).log()
    start = vocabulary * parallel.index // parallel.size
    local = (microbatch.targets >= start) & (microbatch.targets < start + logits.shape[-1])
    rows = torch.where(local, microbatch.targets - start, 0)
    chosen = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1)
    return (partition - parallel.leave(chosen * local.to(chosen.dtype))).sum() * microbatch.weight
