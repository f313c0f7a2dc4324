"""The exchanges of ZeRO-2 and 3 around each pass of a layer."""

from __future__ import annotations

from sailor_runtime.training.optimizer.gradients import GradientAllReduce
from sailor_runtime.training.optimizer.weights import MasterWeights
from sailor_runtime.training.pipeline.spans import Activity, Spans


class PassSharing:
    """Gathers a layer's weights before each of its passes, the next layer's during it, and scatters its gradients.

    With ZeRO-2 all weights stay, so nothing is gathered here.
    """

    def __init__(self, gradients: GradientAllReduce, weights: MasterWeights, spans: Spans) -> None:
        self._gradients, self._weights, self._spans = gradients, weights, spans

    def before_pass(self, layer: int, *, forward: bool) -> None:
        self._weights.begin_gather(layer)
        with self._spans.during(Activity.GATHER):
            self._weights.wait_for_pass(layer)
        self._weights.begin_gather(layer + 1 if forward else layer - 1)

    def after_forward(self, layer: int) -> None:
        self._weights.free(layer)

    def after_backward(self, layer: int) -> None:
        self._gradients.pass_done(layer)
        self._weights.free(layer)
