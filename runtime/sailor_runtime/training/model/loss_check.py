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

    def __call__(self, output: Tensor, microbatch: Microbatch) -> Tensor:
        """Return the loss of the last layer's output. Raises RefusedError if it is not the mean over samples."""
        # Before the loss of the microbatch, which may change the output in place.
        losses = self._of_samples(output, microbatch) if self._is_due(microbatch) else []
        found = self._loss(output, microbatch)
        if losses:
            self._compare(found.detach().cpu(), losses, coarse=_is_coarse(output))
        return found

    def _is_due(self, microbatch: Microbatch) -> bool:
        step = microbatch.dropout.step
        self._first_step = step if self._first_step is None else self._first_step
        if self._left == 0 or step >= self._first_step + _STEPS:
            self._before = None
            return False
        self._left -= 1
        return True

    @torch.no_grad()
    def _of_samples(self, output: Tensor, microbatch: Microbatch) -> list[Tensor]:
        """Return the loss of each sample; compare two samples with both together where the microbatch does not."""
        losses = [self._value([_sample(output, microbatch, index)]) for index in range(len(output))]
        first = _sample(output, microbatch, 0)
        pair = [self._before, first] if self._before else []
        if len(output) > 1:
            # In 16 bits the loss of a microbatch is too coarse, so two samples are compared in single precision, too.
            pair = [first, _sample(output, microbatch, 1)] if _is_coarse(output) else []
        if pair:
            self._compare(self._value(pair), [self._value([each]) for each in pair], coarse=False)
        self._before = _moved(first, "cpu") if len(output) == 1 else None
        return losses

    def _value(self, samples: list[tuple[Tensor, Microbatch]]) -> Tensor:
        """Return the loss of copies of some samples: on the CPU if it can, as they may not fit beside training."""
        try:
            return self._loss(*_joined([_moved(each, "cpu") for each in samples]))
        except RuntimeError:
            device = samples[-1][0].device
            return self._loss(*_joined([_moved(each, device) for each in samples])).cpu()

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


def _is_coarse(output: Tensor) -> bool:
    return output.dtype.itemsize < 4


def _moved(sample: tuple[Tensor, Microbatch], device: torch.device | str) -> tuple[Tensor, Microbatch]:
    """Return a copy in single precision or better."""
    output, batch = sample
    moved = dataclasses.replace(batch, tokens=batch.tokens.to(device), targets=batch.targets.to(device))
    return output.detach().to(device, torch.promote_types(output.dtype, torch.float32), copy=True), moved


def _sample(output: Tensor, microbatch: Microbatch, index: int) -> tuple[Tensor, Microbatch]:
    one = slice(index, index + 1)
    tokens, targets = microbatch.tokens[one], microbatch.targets[one]
    return output[one], dataclasses.replace(microbatch, tokens=tokens, targets=targets)


def _joined(samples: list[tuple[Tensor, Microbatch]]) -> tuple[Tensor, Microbatch]:
    outputs, batches = zip(*samples, strict=True)
    tokens, targets = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("tokens", "targets"))
    return torch.cat(outputs), dataclasses.replace(batches[0], tokens=tokens, targets=targets)
