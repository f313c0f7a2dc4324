"""The pipeline of one rank: the passes of a schedule over transfers that run beside them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sailor_runtime.spec import PipelineSpec
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.pipeline.schedule import Kind, passes
from sailor_runtime.training.pipeline.spans import Doing, Spans
from sailor_runtime.training.pipeline.stage import Activation, StageModule
from sailor_runtime.training.pipeline.transfers import Transfers


class Executor:
    """Runs all microbatches of an iteration through one stage."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        stage: int,
        schedule: str,
        module: StageModule,
        transfers: Transfers,
        spans: Spans,
    ) -> None:
        self._microbatches = pipeline.microbatches
        self._passes = passes(schedule, pipeline.microbatches, len(pipeline.stages), stage)
        self._halved = any(each.kind is Kind.WEIGHTS for each in self._passes)
        self._module = module
        self._transfers = transfers
        self._spans = spans
        self.is_first = stage == 0
        self.is_last = stage == len(pipeline.stages) - 1

    def run(
        self,
        microbatch: Callable[[int], Microbatch],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        gradients_ready: Callable[[int], None] | None = None,
        weights_ready: Callable[[int], None] | None = None,
    ) -> Tensor:
        """Train on every microbatch, leaving gradients in the parameters; return this stage's loss sum in float64.

        microbatch: gives microbatch i. shape: of a transferred tensor. gradients_ready: called with each layer once
        its gradients hold all microbatches. weights_ready: called with each layer before its first pass. The loss sum
        is 0 before the last stage.
        """
        activations: dict[int, Activation] = {}
        losses: list[Tensor] = []
        self._transfers.begin(shape, dtype, self._microbatches)
        for kind, number in self._passes:
            last = gradients_ready if number == self._microbatches - 1 else None
            if kind is Kind.FORWARD:
                activations[number] = self._forward(number, microbatch, weights_ready if number == 0 else None)
                if self.is_last:
                    losses.append(_given(activations[number].result))
            elif kind is Kind.BACKWARD:
                self._backward(number, activations.pop(number), last)
            elif kind is Kind.INPUT:
                self._backward_input(number, activations[number])
            else:
                with self._spans.during(Doing.WEIGHT_GRADIENTS, number):
                    self._module.backward_weights(activations.pop(number), last)
        return torch.stack(losses).double().sum() if losses else torch.zeros((), dtype=torch.float64)

    def _forward(
        self, number: int, microbatch: Callable[[int], Microbatch], ready: Callable[[int], None] | None
    ) -> Activation:
        value = None
        if not self.is_first:
            with self._spans.during(Doing.RECEIVE_ACTIVATION, number):
                value = self._transfers.receive(1)
        with self._spans.during(Doing.FORWARD, number):
            cut = self._halved or number == self._microbatches - 1
            activation = self._module.forward(value, microbatch(number), ready, cut=cut)
        if not self.is_last:
            with self._spans.during(Doing.SEND, number):
                self._transfers.send(_given(activation.result), 1)
        return activation

    def _backward(self, number: int, activation: Activation, ready: Callable[[int], None] | None) -> None:
        gradient = self._gradient_of_output(number)
        with self._spans.during(Doing.BACKWARD, number):
            gradient = self._module.backward(activation, gradient, ready)
        self._hand_back(number, gradient)

    def _backward_input(self, number: int, activation: Activation) -> None:
        gradient = self._gradient_of_output(number)
        with self._spans.during(Doing.BACKWARD, number):
            gradient = self._module.backward_input(activation, gradient)
        self._hand_back(number, gradient)

    def _gradient_of_output(self, number: int) -> Tensor | None:
        if self.is_last:
            return None
        with self._spans.during(Doing.RECEIVE_GRADIENT, number):
            return self._transfers.receive(-1)

    def _hand_back(self, number: int, gradient: Tensor | None) -> None:
        if not self.is_first:
            with self._spans.during(Doing.SEND, number):
                self._transfers.send(_given(gradient), -1)


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
