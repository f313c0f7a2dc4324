"""Times layers inside a running training step: plans are based on their time with all ranks busy."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.profile.operations import forward_flops
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.data.samples import open_samples
from sailor_runtime.training.engine import Engine
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.observe.metrics import memory_peak_bytes
from sailor_runtime.training.optimizer import optimizer
from sailor_runtime.training.optimizer.precision import precision_of, set_up
from sailor_runtime.training.pipeline import layout
from sailor_runtime.training.pipeline.devices import device_of
from sailor_runtime.training.pipeline.layout import Place
from sailor_runtime.training.pipeline.process_groups import World
from sailor_runtime.training.pipeline.spans import Activity, total_s
from sailor_runtime.training.pipeline.stage import StageModule

_WARM_UP = 2
_LEAST_STEPS, _MOST_STEPS = 5, 60
_WANTED_S = 3.0


def measure(spec: RunSpec, rank: int, world: World) -> dict[str, Any] | None:
    """Train some steps and return on rank 0 the seconds of each kind of layer; None on the other ranks.

    Also `activation_bytes` and `forward_flops` per microbatch and device, and `peak_bytes`. That is the peak memory of
    a rank of the measured pipeline during training (on a CUDA device; 0 on processors, where a process has much else).
    A collective.
    """
    place = layout.places(spec)[rank]
    stage = spec.pipelines[place.pipeline].stages[place.stage]
    device = device_of(spec.node_of(rank), stage.devices[place.tp_index])
    set_up(spec.training.precision, device.torch_device)
    if device.torch_device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    atoms, precision = layout.atoms(spec), precision_of(spec.training.precision)
    engine = Engine(spec, place, world, atoms, open_samples(spec), device, precision)
    own = _train(engine, place, world)
    own |= {**_of_one_pass(engine, spec), "update_s": _update_s(engine)}
    peak = memory_peak_bytes(device.torch_device) if device.torch_device.type == "cuda" else 0.0
    own |= {"pipeline": place.pipeline, "peak_bytes": peak}
    everyone: list[Any] | None = [None] * world.size if rank == 0 else None
    dist.gather_object(own, everyone, group=world.everyone)
    return None if everyone is None else _by_kind(spec, [each for each in everyone if each["pipeline"] == 0])


def _train(engine: Engine, place: Place, world: World) -> dict[str, Any]:
    """Return medians over steps of each layer's seconds per microbatch, and of the whole update."""
    module, microbatches = engine.module, engine.spec.pipelines[place.pipeline].microbatches
    module.times_layers = True
    for _ in range(_WARM_UP):
        started = time.perf_counter()
        engine.step()
    slowest = torch.tensor([time.perf_counter() - started], dtype=torch.float64, device=engine.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=world.everyone)
    steps = int(min(_MOST_STEPS, max(_LEAST_STEPS, _WANTED_S / slowest.item())))
    seconds: dict[str, dict[int, list[float]]] = {"forward_s": defaultdict(list), "backward_s": defaultdict(list)}
    whole = []
    for _ in range(steps):
        module.reset_times()
        done = engine.step()
        whole.append(done.update_s)
        for name, found in zip(seconds, module.layer_times(), strict=True):
            for layer in module.layers:
                seconds[name][layer].append(found[layer] / microbatches)
        # Reading samples and the bookkeeping around layers count for the pipeline's ends.
        end = 0 if module.layers[0] == 0 else module.layers[-1]
        around = total_s(engine.spans, Activity.FORWARD) / microbatches
        around -= sum(seconds["forward_s"][layer][-1] for layer in module.layers)
        seconds["forward_s"][end][-1] += max(0.0, around)
    medians = {name: {k: statistics.median(v) for k, v in found.items()} for name, found in seconds.items()}
    return {**medians, "whole_update_s": statistics.median(whole)}


def _update_s(engine: Engine) -> dict[int, float]:
    """Return each layer's share of the optimizer step, by the time to update only its own parameters."""
    module, found = engine.module, {}
    for layer in module.layers:
        weights = [module.parameters[spec.name] for spec in module.specs[layer]]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        alone = optimizer.build(engine.spec.training, weights)
        times = []
        for _ in range(_WARM_UP + _LEAST_STEPS):
            started = _now(engine.device)
            torch._foreach_norm([weight.grad for weight in weights if weight.grad is not None])
            alone.step()
            times.append(_now(engine.device) - started)
        found[layer] = statistics.median(times[_WARM_UP:])
    return found


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _of_one_pass(engine: Engine, spec: RunSpec) -> dict[str, dict[int, int]]:
    """Return the bytes that autograd keeps of each layer per microbatch, and the operations of its forward pass.

    The bytes include the layer's output and exclude its input.
    """
    module, training = engine.module, spec.training
    size = spec.pipelines[0].microbatch_size
    tokens = torch.zeros((size, training.sequence_length), dtype=torch.int64, device=engine.device)
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(size, device=engine.device))
    microbatch = Microbatch(tokens=tokens, targets=tokens, weight=1.0, dropout=dropout)
    shape = (size, training.sequence_length, spec.model.hidden_size)
    kept, flops = {}, {}
    for layer in module.layers:
        value = None
        if layer > 0:
            value = torch.zeros(shape, dtype=module.dtype, device=engine.device, requires_grad=True)
        kept[layer] = kept_bytes(module, layer, value, microbatch)
        flops[layer] = forward_flops(module, layer, value, microbatch)
    return {"activation_bytes": kept, "forward_flops": flops}


def kept_bytes(module: StageModule, layer: int, value: Tensor | None, microbatch: Microbatch) -> int:
    """Return the bytes of storages that a layer's forward pass keeps, without its input, parameters and tokens."""
    known = [*module.parameters.values(), microbatch.tokens, microbatch.targets, *([] if value is None else [value])]
    left_out = {tensor.untyped_storage()._cdata for tensor in known}
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in left_out:
            kept[storage._cdata] = storage.nbytes()
            held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module.layer(layer, value, microbatch)
    kept[output.untyped_storage()._cdata] = output.untyped_storage().nbytes()
    return sum(kept.values())


def _by_kind(spec: RunSpec, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the layers of a kind on all devices; updates are scaled to the whole step."""
    last = spec.model.layers - 1
    kinds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for each in ranks:
        stretch = each["whole_update_s"] / max(1e-12, sum(each["update_s"].values()))
        for layer, update_s in each["update_s"].items():
            kind = {0: "embedding", last: "head"}.get(layer, "block")
            kinds[kind]["update_s"].append(update_s * stretch)
            for name in ("forward_s", "backward_s", "activation_bytes", "forward_flops"):
                kinds[kind][name].append(each[name][layer])
    means = {kind: {name: statistics.fmean(v) for name, v in found.items()} for kind, found in kinds.items()}
    return {"kinds": means, "peak_bytes": max(each["peak_bytes"] for each in ranks)}
