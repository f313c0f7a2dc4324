"""The pipeline of one rank: the passes of a schedule, with transfers in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sailor_runtime.spec import PipelineSpec
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.pipeline.schedule import Kind, passes, receives_ahead
from sailor_runtime.training.pipeline.spans import Activity, Spans
from sailor_runtime.training.pipeline.stage import Activation, StageModule
from sailor_runtime.training.pipeline.transfers import Transfers


class Executor:
    """Runs all microbatches of an iteration through one stage, once for each of its ranges of layers."""

    def __init__(
        self,
        pipeline: PipelineSpec,
        stage: int,
        schedule: str,
        module: StageModule,
        transfers: Sequence[Transfers],
        spans: Spans,
    ) -> None:
        """`transfers`: those of each range."""
        ranges, stages = len(pipeline.stages[stage].ranges), len(pipeline.stages)
        self._microbatches = pipeline.microbatches
        orders = [passes(schedule, pipeline.microbatches, stages, each, ranges) for each in range(stages)]
        self._passes = orders[stage]
        self._ahead = receives_ahead(orders, stage, ranges)
        self._halved = any(each.kind is Kind.WEIGHTS for each in self._passes)
        self._module = module
        self._transfers = transfers
        self._spans = spans
        # The chunks that begin and end with the model's first and last layers, None if those are elsewhere.
        self._first = 0 if stage == 0 else None
        self._last = ranges - 1 if stage == len(pipeline.stages) - 1 else None

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self._last is not None

    def run(
        self,
        microbatch: Callable[[int, bool], Microbatch],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        gradients_ready: Callable[[int], None] | None = None,
        weights_ready: Callable[[int], None] | None = None,
        *,
        overlaps: bool = True,
    ) -> Tensor:
        """Train on every microbatch, leaving gradients in the parameters; return this stage's loss sum in float64.

        microbatch: returns microbatch i, with tokens if requested. shape: of a transferred tensor. gradients_ready:
        called with each layer once its gradients include all microbatches. weights_ready: called with each layer before
        its first pass. The loss sum is 0 before the last stage. overlaps: receives are posted ahead and
        `gradients_ready` is called; otherwise neither happens.
        """
        activations: dict[tuple[int, int], Activation] = {}
        losses: list[Tensor] = []
        for transfers in self._transfers:
            transfers.begin(shape, dtype)
        for (kind, number, chunk), ahead in zip(self._passes, self._ahead, strict=True):
            received = self._receive(kind, number, chunk)
            for expecting, direction in ahead if overlaps else ():
                self._transfers[expecting].post(direction)
            last = gradients_ready if overlaps and number == self._microbatches - 1 else None
            if kind is Kind.FORWARD:
                ready = weights_ready if number == 0 else None
                activations[number, chunk] = self._forward(number, chunk, received, microbatch, ready)
                if chunk == self._last:
                    losses.append(_given(activations[number, chunk].result))
            elif kind is Kind.BACKWARD:
                self._backward(number, chunk, activations.pop((number, chunk)), received, last)
            elif kind is Kind.INPUT:
                self._backward_input(number, chunk, activations[number, chunk], received)
            else:
                with self._spans.during(Activity.WEIGHT_GRADIENTS, number):
                    self._module.backward_weights(activations.pop((number, chunk)), last)
            # Else it would stay in memory during the wait for the next one.
            del received
        return torch.stack(losses).double().sum() if losses else torch.zeros((), dtype=torch.float64)

    def _receive(self, kind: Kind, number: int, chunk: int) -> Tensor | None:
        """Wait for the tensor that a pass needs from another stage."""
        if kind is Kind.FORWARD and chunk != self._first:
            with self._spans.during(Activity.RECEIVE_ACTIVATION, number, chunk):
                return self._transfers[chunk].receive(1)
        if kind in (Kind.BACKWARD, Kind.INPUT) and chunk != self._last:
            with self._spans.during(Activity.RECEIVE_GRADIENT, number, chunk):
                return self._transfers[chunk].receive(-1)
        return None

    def _forward(
        self,
        number: int,
        chunk: int,
        value: Tensor | None,
        microbatch: Callable[[int, bool], Microbatch],
        ready: Callable[[int], None] | None,
    ) -> Activation:
        with self._spans.during(Activity.FORWARD, number, chunk):
            given = microbatch(number, chunk in (self._first, self._last))
            activation = self._module.forward(value, given, ready, halved=self._halved, chunk=chunk)
        if chunk != self._last:
            with self._spans.during(Activity.SEND, number, chunk):
                self._transfers[chunk].send(_given(activation.result), 1)
            # The send keeps the tensor until it has left; if the last layer is recomputed nothing else does.
            activation.result = None
        return activation

    def _backward(
        self,
        number: int,
        chunk: int,
        activation: Activation,
        gradient: Tensor | None,
        ready: Callable[[int], None] | None,
    ) -> None:
        with self._spans.during(Activity.BACKWARD, number, chunk):
            gradient = self._module.backward(activation, gradient, ready)
        self._hand_back(number, chunk, gradient)

    def _backward_input(self, number: int, chunk: int, activation: Activation, gradient: Tensor | None) -> None:
        with self._spans.during(Activity.BACKWARD, number, chunk):
            gradient = self._module.backward_input(activation, gradient)
        self._hand_back(number, chunk, gradient)

    def _hand_back(self, number: int, chunk: int, gradient: Tensor | None) -> None:
        if chunk != self._first:
            with self._spans.during(Activity.SEND, number, chunk):
                self._transfers[chunk].send(_given(gradient), -1)


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value
