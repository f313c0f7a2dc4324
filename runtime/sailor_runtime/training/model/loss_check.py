"""Checks in the first microbatches that a user's loss is the mean over its samples, as every plan assumes.

A plan cuts a batch into microbatches of its own sizes and adds up their mean losses, weighted by samples. Only a loss
that is such a mean gives the same sum under every plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sailor_runtime.refusal import RefusedError
from sailor_runtime.training.model.layers import Microbatch

# Each check computes the loss about once more. Calibration measures the median of three steps after its first one.
_STEPS, _MICROBATCHES = 2, 16
# Relative differences by rounding, by the format of the loss: sums of many tokens in another order.
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-5}
# In 16 bits the error grows with the logits, not with the loss, so losses below 1 get the tolerance of 1.
_COARSE = 5e-2


class LossCheck:
    """Compares the loss of the first microbatches on one rank with those of their samples, one by one."""

    def __init__(self, loss: Callable[[Tensor, Any], Tensor], name: str) -> None:
        self._loss = loss
        self._name = name
        self._left = _MICROBATCHES
        self._first_step: int | None = None
        # Of the microbatch before, if that has one sample: a pair shows what one cannot.
        self._before: tuple[Tensor, Microbatch] | None = None

    @torch.no_grad()
    def __call__(self, found: Tensor, output: Tensor, microbatch: Microbatch) -> None:
        """Raise RefusedError if `found`, the loss of the last layer's output, is not the mean over samples."""
        step = microbatch.dropout.step
        self._first_step = step if self._first_step is None else self._first_step
        if self._left == 0 or step >= self._first_step + _STEPS:
            self._before = None
            return
        self._left -= 1
        samples = [_sample(output, microbatch, index) for index in range(len(output))]
        losses = [self._value(*sample) for sample in samples]
        coarse = output.dtype.itemsize < 4
        self._compare(found, losses, coarse=coarse)
        # In 16 bits the loss of a microbatch is too coarse, so two samples are compared in single precision, too.
        pair = samples[:2] if len(samples) > 1 else [*([self._before] if self._before else []), *samples]
        if len(pair) > 1 and (coarse or len(samples) == 1):
            self._compare(self._value(*_joined(pair)), [self._value(*sample) for sample in pair], coarse=False)
        self._before = samples[0] if len(samples) == 1 else None

    def _value(self, output: Tensor, microbatch: Microbatch) -> Tensor:
        return self._loss(output.to(torch.promote_types(output.dtype, torch.float32)), microbatch)

    def _compare(self, found: Tensor, losses: list[Tensor], *, coarse: bool) -> None:
        each = torch.stack(losses).double()
        tolerance = _COARSE if coarse else _TOLERANCES.get(found.dtype, _COARSE)
        difference = (found.double() - each.mean()).abs()
        largest = torch.maximum(found.double().abs(), each.abs().max())
        # Losses that are not finite stop the run elsewhere.
        if difference > tolerance * (largest.clamp(min=1.0) if coarse else largest):
            count, shown = len(losses), ", ".join(f"{loss:.6g}" for loss in each[:4].tolist())
            raise RefusedError(
                f"the loss of {self._name} is no mean over samples: {found.item():.6g} for {count} of them, but "
                f"{each.mean().item():.6g} is the mean of their own losses ({shown}{', …' if count > 4 else ''}), so "
                "another size of microbatches would train another model. loss(output, batch) must use nothing else, "
                "treat every sample by itself, and divide by a number that is the same for all samples: "
                "batch.targets.numel(), not the number of unmasked tokens"
            )


def _sample(output: Tensor, microbatch: Microbatch, index: int) -> tuple[Tensor, Microbatch]:
    one = slice(index, index + 1)
    tokens, targets = microbatch.tokens[one], microbatch.targets[one]
    return output[one], dataclasses.replace(microbatch, tokens=tokens, targets=targets)


def _joined(samples: list[tuple[Tensor, Microbatch]]) -> tuple[Tensor, Microbatch]:
    outputs, batches = zip(*samples, strict=True)
    tokens, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "targets"))
    return torch.cat(outputs), dataclasses.replace(batches[0], tokens=tokens, targets=targets)
