"""Peak memory of one device without that device: a training step under fake tensors, which have no data."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from sailor_runtime.spec import ModelSpec, StageSpec, TrainingSpec
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.optimizer import optimizer
from sailor_runtime.training.optimizer.precision import precision_of
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.stage import StageModule

# The first step creates gradients and optimizer states; later steps have all of them from the start.
_STEPS = 2


def peak_bytes(model: ModelSpec, training: TrainingSpec, microbatch_size: int) -> int:
    """Return the peak of tensor bytes when one device trains the whole model, one microbatch in flight.

    Counts weights, master weights, gradients, optimizer states and activations, but not the framework, communication
    and fragmentation of an allocator. Fake processor tensors emulate the device's, so other workspace of the device's
    kernels is not seen.
    """
    precision = precision_of(training.precision)
    cpu = torch.device("cpu")
    with FakeTensorMode():
        stage = StageSpec(first_layer=0, end_layer=model.layers, node="", devices=(0,), ranks=(0,))
        device = Device(torch_device=cpu, kernel_runs=1)
        module = StageModule(model, stage, TensorParallel(None, 1, 0), device, precision.compute)
        weights = list(module.parameters.values())
        masters = weights
        if precision.master != precision.compute:
            masters = [torch.empty_like(weight, dtype=precision.master, requires_grad=True) for weight in weights]
        stepper = optimizer.build(training, masters)
        tracker = MemTracker()
        tracker.track_external(stepper, *weights, *(masters if masters is not weights else ()))
        # Values that the model computes once for all steps belong to no step.
        module.forward(None, _microbatch(training, microbatch_size))
        with tracker:
            for _ in range(_STEPS):
                tracker.reset_mod_stats()
                _step(module, training, microbatch_size)
                for master, name in zip(masters, module.parameters, strict=True):
                    master.grad = module.gradient(name)
                stepper.step()
    snapshot = tracker.get_tracker_snapshot("peak")
    return int(snapshot[cpu]["Total"])


def _step(module: StageModule, training: TrainingSpec, microbatch_size: int) -> None:
    module.clear_gradients()
    module.backward(module.forward(None, _microbatch(training, microbatch_size)), None)


def _microbatch(training: TrainingSpec, size: int) -> Microbatch:
    tokens = torch.zeros((size, training.sequence_length), dtype=torch.int64)
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(size))
    return Microbatch(tokens=tokens, targets=tokens, weight=1.0, dropout=dropout)
