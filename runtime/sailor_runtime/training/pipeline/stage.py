"""One rank's part of the model: its shards, and forward and backward of its layers for one microbatch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec, StageSpec
from sailor_runtime.training.model.architecture import architecture_of, layer_parameters, untied_parameters
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.pipeline.devices import Device
from sailor_runtime.training.pipeline.layout import stage_parameters
from sailor_runtime.training.pipeline.spans import Clock
from sailor_runtime.training.pipeline.split_backward import DeferredWeights, input_gradient

# torch.compile's backend.
COMPILER = "inductor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """This rank's part of a parameter: `intervals` along its `cut_dim` (dimension 0 if replicated), concatenated."""

    spec: ParameterSpec
    cut_dim: int
    intervals: tuple[tuple[int, int], ...]

    def of(self, whole: Tensor) -> Tensor:
        parts = [whole.narrow(self.cut_dim, start, end - start) for start, end in self.intervals]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.cut_dim)

    def place(self, start: int, end: int) -> int | None:
        """Return where [start, end) of the parameter begins in this part, None if it is not entirely in it."""
        before = 0
        for first, stop in self.intervals:
            if first <= start and end <= stop:
                return before + start - first
            before += stop - first
        return None

    def boxes(self, held: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return the parts of `held`, a tensor of this shard's shape, each with its offsets in the parameter."""
        found = []
        for start, end in self.intervals:
            offsets = tuple(start if dim == self.cut_dim else 0 for dim in range(held.dim()))
            found.append((offsets, held.narrow(self.cut_dim, _known(self.place(start, end)), end - start)))
        return found


def _known(place: int | None) -> int:
    assert place is not None
    return place


def shard_of(spec: ParameterSpec, tp: int, index: int) -> Shard:
    """Return the part of a parameter on tensor-parallel rank `index` of `tp`."""
    return Shard(spec=spec, cut_dim=spec.cut_dim or 0, intervals=spec.intervals(tp, index))


@dataclass(slots=True)
class Activation:
    """The state for the backward pass of one microbatch: inputs and outputs of each of `layers`, first layer first.

    If the graph is `whole`, the inputs are places in it and there is one output. `later`: functions that compute the
    gradients of each layer's weights after a backward pass through its inputs, last layer first; None if these exist
    already.
    """

    microbatch: Microbatch
    layers: range
    inputs: list[Tensor | None] = field(default_factory=list)
    outputs: list[Tensor | None] = field(default_factory=list)
    result: Tensor | None = None
    whole: bool = False
    later: list[Callable[[], None] | None] = field(default_factory=list)


class Sharing(Protocol):
    """The exchanges of ZeRO-2 and 3 around each pass of a layer."""

    def before_pass(self, layer: int, *, forward: bool) -> None: ...

    def after_forward(self, layer: int) -> None: ...

    def after_backward(self, layer: int) -> None: ...


class StageModule:
    """The layers of one stage on one rank, in one range or several.

    If necessary, the autograd graph is cut between layers, so that each layer can be timed, repeated and recomputed. A
    cut costs a separate backward pass per layer, so otherwise all layers are one graph.
    """

    def __init__(
        self,
        model: ModelSpec,
        stage: StageSpec,
        parallel: TensorParallel,
        device: Device,
        dtype: torch.dtype,
        *,
        dropout: bool = False,
        compiled: bool = False,
        zero_stage: int = 0,
    ) -> None:
        """`compiled`: torch.compile compiles each layer between embedding and head.

        `zero_stage`: from 2 on, parameters that only one layer uses have the gradients of one pass, which are added up
        elsewhere; with 3 their weights exist only during a pass.
        """
        self.ranges, self.layers = stage.ranges, stage.layers
        self.shards = {
            name: shard_of(spec, parallel.size, parallel.index) for name, spec in stage_parameters(model, stage).items()
        }
        untied = untied_parameters(model) & self.shards.keys()
        self.scattered = untied if zero_stage >= 2 else frozenset()
        self.absent = untied if zero_stage == 3 else frozenset()
        self.sharing: Sharing | None = None
        self._computed = architecture_of(model).stage(
            self.layers, parallel, device.torch_device, dtype, dropout=dropout, absent=self.absent
        )
        # In the order of the shards, which is that of the layers.
        self.parameters: dict[str, Tensor] = {name: self._computed.parameters[name] for name in self.shards}
        # Parts are counted on these shapes, because absent weights have no memory.
        self.shapes = {name: parameter.detach().to("meta") for name, parameter in self.parameters.items()}
        self.dtype = dtype
        self.buffers = self._computed.buffers
        # Whether one pass of a whole batch would be one pass of each layer here.
        self.passes_once = not stage.recompute and len(stage.ranks) == 1 and device.kernel_runs == 1
        # Timing needs a graph per layer, so only calibration and profiles enable it.
        self.times_layers = False
        self._clock = Clock(device.torch_device)
        self._timed: list[tuple[bool, int, Any, Any]] = []
        if compiled:
            for layer in self.layers:
                for part in self._computed.modules(layer):
                    part.compile(backend=COMPILER, dynamic=False)
        self._recomputed = frozenset(stage.recompute)
        self._device = device
        self.specs = {layer: layer_parameters(model, layer) for layer in self.layers}
        # Gradients in memory that the caller provides; see `keep_gradients_in`.
        self._kept: dict[str, Tensor] = {}
        self._cleared: set[str] = set()
        self._sums: dict[str, Tensor] | None = None
        if dtype.itemsize < 4:
            self._sums = {
                name: torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
                for name, parameter in self.parameters.items()
                if parameter.requires_grad and name not in self.scattered
            }

    def gradient(self, name: str) -> Tensor:
        """Return the sum of a parameter's gradients over the microbatches so far, at least in single precision.

        For a scattered parameter, return those of the present pass, in the format of the weights.
        """
        parameter, sums = self.parameters[name], self._kept if self._sums is None else self._sums
        if name in self._cleared:
            self._cleared.discard(name)
            sums[name].zero_()
            parameter.grad = sums[name] if self._sums is None else None
        if self._sums is not None and name not in self.scattered:
            return self._sums[name]
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def keep_gradients_in(self, places: Mapping[str, Tensor]) -> None:
        """Add up the gradients of some parameters in given tensors of their shapes, zero now and after each clearing.

        A sum over ranks can then work on many gradients together, without a copy of them.
        """
        self._kept.update(places)
        if self._sums is not None:
            self._sums.update(places)
        self.clear_gradients()

    def clear_gradients(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        # Zeros are written only on request: the first microbatch overwrites the old values.
        self._cleared = set(self._kept if self._sums is None else self._sums)

    def drop_gradients(self, layer: int) -> None:
        """Free the gradients of a layer that are added up elsewhere."""
        for spec in self.specs[layer]:
            if spec.name in self.scattered:
                self.parameters[spec.name].grad = None

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that have gradients."""
        return [name for name, parameter in self.parameters.items() if parameter.requires_grad]

    def reset_times(self) -> None:
        self._timed.clear()

    def layer_times(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the seconds of all forward and of all backward passes of each layer; waits until they are done."""
        forward_s, backward_s = dict.fromkeys(self.layers, 0.0), dict.fromkeys(self.layers, 0.0)
        for forward, layer, start, end in self._timed:
            self._clock.wait(end)
            (forward_s if forward else backward_s)[layer] += self._clock.seconds(start, end)
        return forward_s, backward_s

    def layer(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        """Run one layer alone."""
        return self._computed(layer, value, microbatch)

    def forward(
        self,
        value: Tensor | None,
        microbatch: Microbatch,
        before_layer: Callable[[int], None] | None = None,
        *,
        halved: bool = False,
        chunk: int = 0,
    ) -> Activation:
        """Run a range of layers on a microbatch; `value` is None on the first stage. before_layer: called before each.

        halved: `backward_input` will be called. chunk: the index of the range.
        """
        layers = self.ranges[chunk]
        repeated = self._recomputed or self._device.kernel_runs > 1
        if not (halved or self.times_layers or repeated or self.sharing is not None):
            return self._whole(layers, value, microbatch, before_layer)
        activation = Activation(microbatch=microbatch, layers=layers)
        for layer in layers:
            if before_layer is not None:
                before_layer(layer)
            if self.sharing is not None:
                self.sharing.before_pass(layer, forward=True)
            started = self._clock.mark() if self.times_layers else None
            value = None if value is None else value.detach().requires_grad_()
            activation.inputs.append(value)
            for _ in range(self._device.kernel_runs):
                with torch.set_grad_enabled(layer not in self._recomputed):
                    output = self._computed(layer, value, microbatch)
            activation.outputs.append(None if layer in self._recomputed else output)
            value = output
            self._note_time(True, layer, started)
            if self.sharing is not None:
                self.sharing.after_forward(layer)
        activation.result = None if value is None else value.detach()
        return activation

    def _whole(
        self,
        layers: range,
        value: Tensor | None,
        microbatch: Microbatch,
        before_layer: Callable[[int], None] | None,
    ) -> Activation:
        value = None if value is None else value.detach().requires_grad_()
        activation = Activation(microbatch=microbatch, layers=layers, whole=True)
        for layer in layers:
            if before_layer is not None:
                before_layer(layer)
            activation.inputs.append(value)
            value = self._computed(layer, value, microbatch)
        activation.outputs.append(value)
        activation.result = None if value is None else value.detach()
        return activation

    def backward(
        self, activation: Activation, gradient: Tensor | None, layer_done: Callable[[int], None] | None = None
    ) -> Tensor | None:
        """Add the microbatch's gradients to the parameters and return the gradient of the layers' input.

        gradient: of their output; None on the last stage, whose output is the loss. layer_done: called with each layer
        after its pass, last layer first.
        """
        if activation.whole:
            return self._whole_backward(activation, gradient, layer_done)
        for layer in reversed(activation.layers):
            if self.sharing is not None:
                self.sharing.before_pass(layer, forward=False)
            started = self._clock.mark() if self.times_layers else None
            value, output = activation.inputs.pop(), activation.outputs.pop()
            self._layer_backward(layer, value, output, gradient, activation.microbatch)
            gradient = None if value is None else value.grad
            self._note_time(False, layer, started)
            if self.sharing is not None:
                self.sharing.after_backward(layer)
            if layer_done is not None:
                layer_done(layer)
        return gradient

    def _whole_backward(
        self, activation: Activation, gradient: Tensor | None, layer_done: Callable[[int], None] | None
    ) -> Tensor | None:
        left = list(activation.layers)

        def reached(layer: int) -> None:
            while left and left[-1] >= layer:
                self._add_to_sums(left[-1])
                if layer_done is not None:
                    layer_done(left[-1])
                left.pop()

        first, output = activation.inputs[0], activation.outputs.pop()
        assert output is not None
        if layer_done is not None or self._sums is not None:
            # Autograd runs later nodes first: when a layer's input has its gradient, its weights have theirs.
            for layer, value in zip(activation.layers[1:], activation.inputs[1:], strict=True):
                if value is not None and value.requires_grad:
                    value.register_hook(lambda _, layer=layer: reached(layer))
        activation.inputs.clear()
        # The first layers have nothing to train if their parameters are frozen.
        if output.requires_grad:
            output.backward(gradient)
        reached(activation.layers[0])
        return None if first is None else first.grad

    def _layer_backward(
        self, layer: int, value: Tensor | None, output: Tensor | None, gradient: Tensor | None, microbatch: Microbatch
    ) -> None:
        if output is None:
            for _ in range(self._device.kernel_runs):
                output = self._computed(layer, value, microbatch)
        assert output is not None
        for _ in range(self._device.kernel_runs - 1):
            leaves = [self.parameters[spec.name] for spec in self.specs[layer] if spec.trainable]
            leaves += [] if value is None else [value]
            if leaves:
                torch.autograd.grad(output, leaves, gradient, retain_graph=True, allow_unused=True)
        # The first layer has nothing to train if its parameters are frozen.
        if output.requires_grad:
            output.backward(gradient)
        self._add_to_sums(layer)

    def backward_input(self, activation: Activation, gradient: Tensor | None) -> Tensor | None:
        """Return the gradient of the stage's input, and leave those of the weights to `backward_weights`.

        A recomputed layer gets them immediately: keeping its recomputed activations would lose the savings.
        """
        runs = self._device.kernel_runs
        for layer in reversed(activation.layers):
            started = self._clock.mark() if self.times_layers else None
            value, output = activation.inputs.pop(), activation.outputs.pop()
            todo: Callable[[], None] | None = None
            if value is None:
                todo = functools.partial(self._layer_backward, layer, None, output, gradient, activation.microbatch)
                gradient = None
            elif output is None:
                self._layer_backward(layer, value, None, gradient, activation.microbatch)
                gradient = value.grad
            else:
                gradient, left = input_gradient(output, value, gradient, runs)
                if left is None:
                    self._add_to_sums(layer)
                else:
                    todo = functools.partial(self._weights_backward, layer, left)
            activation.later.append(todo)
            self._note_time(False, layer, started)
        return gradient

    def backward_weights(self, activation: Activation, layer_done: Callable[[int], None] | None = None) -> None:
        """Add the gradients that `backward_input` left; layer_done: called with each layer, last layer first."""
        for layer, todo in zip(reversed(activation.layers), activation.later, strict=True):
            started = self._clock.mark() if self.times_layers else None
            if todo is not None:
                todo()
            self._note_time(False, layer, started)
            if layer_done is not None:
                layer_done(layer)

    def _weights_backward(self, layer: int, left: DeferredWeights) -> None:
        left.run(self._device.kernel_runs)
        self._add_to_sums(layer)

    def _note_time(self, forward: bool, layer: int, started: Any) -> None:
        if self.times_layers:
            self._timed.append((forward, layer, started, self._clock.mark()))

    @torch.no_grad()
    def _add_to_sums(self, layer: int) -> None:
        """Move a layer's gradients of a microbatch to where they are added up.

        In 16 bits this happens every time, since adding many microbatches in 16 bits loses precision; otherwise only
        for the first one.
        """
        if self._sums is None and not self._cleared:
            return
        for spec in self.specs[layer]:
            name, parameter = spec.name, self.parameters[spec.name]
            if name in self.scattered:
                continue
            gradient = parameter.grad
            if name in self._cleared and gradient is not None:
                self._cleared.discard(name)
                (self._kept if self._sums is None else self._sums)[name].copy_(gradient)
                parameter.grad = self._kept[name] if self._sums is None else None
            elif name in self._cleared:
                self.gradient(name)
            elif self._sums is not None and gradient is not None:
                self._sums[name].add_(gradient)
                parameter.grad = None
