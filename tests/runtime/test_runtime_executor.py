"""What a stage holds between the passes of a microbatch."""

from __future__ import annotations

import torch

from sailor_runtime.spec import INTERLEAVED, PipelineSpec, StageSpec
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.pipeline.executor import Executor
from sailor_runtime.training.pipeline.spans import Spans
from sailor_runtime.training.pipeline.stage import Activation


class _Network:
    """Takes every tensor, and gives ones."""

    def begin(self, shape, dtype):
        self.sent = []

    def post(self, direction):
        pass

    def receive(self, direction):
        return torch.ones(2)

    def send(self, value, direction):
        self.sent.append(value)


class _Layers:
    """Gives the number of a range as its output, and notes what is left of outputs at backward passes."""

    def __init__(self):
        self.left = []

    def forward(self, value, microbatch, before_layer=None, *, halved=False, chunk=0):
        return Activation(microbatch=microbatch, layers=range(chunk, chunk + 1), result=torch.full((2,), float(chunk)))

    def backward(self, activation, gradient, layer_done=None):
        self.left.append(activation.result)
        return gradient


def test_an_output_that_was_sent_is_freed():
    stages = tuple(
        StageSpec(first_layer=s, end_layer=s + 1, node="n", devices=(s,), ranks=(s,), later_ranges=((s + 2, s + 3),))
        for s in range(2)
    )
    pipeline, layers = PipelineSpec(microbatch_size=1, microbatches=4, stages=stages), _Layers()
    networks = [_Network(), _Network()]
    executor = Executor(pipeline, 0, INTERLEAVED, layers, networks, Spans(torch.device("cpu")))
    none = torch.zeros(0)
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=none)
    given = Microbatch(tokens=none, targets=none, weight=1.0, dropout=dropout)
    executor.run(lambda number, tokens: given, (2,), torch.float32)
    assert layers.left == [None] * 8
    assert [len(network.sent) for network in networks] == [4, 8]
