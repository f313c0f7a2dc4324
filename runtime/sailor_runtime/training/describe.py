"""`python -m sailor_runtime.training.describe MODEL TOKENS`: checks a user's module in one process, on the meta device.

MODEL is a model of a spec as JSON. Prints one line of JSON, or `problem`. It has an entry for each tensor-parallel
degree that can cut the module: the parameters of each layer on one device, how many of them are trained, and those that
a later layer shares. No memory is allocated for weights or activations: only the shapes of TOKENS tokens pass through
all layers.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, model_from_dict
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.user_module import UserModule

_DEGREES = (1, 2, 4, 8, 16)
_SAMPLES = 2


def described(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Return the module's parameters by degree. Raises RefusedError for one that can't be trained."""
    with torch.device("meta"):
        module = UserModule(model)
        _pass_through(module, model, tokens)
    return {"degrees": {str(tp): _counts(module, tp) for tp in _DEGREES if _cuts(module, tp)}}


def _pass_through(module: UserModule, model: ModelSpec, tokens: int) -> None:
    """Send shapes forward and back; each layer's output must be a valid input of the next one."""
    batch = torch.zeros((_SAMPLES, tokens), dtype=torch.int64)
    value = batch
    for layer, part in enumerate(module.root.get_submodule("layers").children()):
        try:
            value = part(value)
        except Exception as error:
            raise RefusedError(f"layer {layer} of {model.module} fails: {type(error).__name__}: {error}") from error
        wanted = (_SAMPLES, tokens, model.hidden_size)
        if layer < module.layers - 1 and tuple(value.shape) != wanted:
            raise RefusedError(
                f"layer {layer} of {model.module} gives {tuple(value.shape)}, and [samples, tokens, hidden_size] is "
                f"{wanted}"
            )
    dropout = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(_SAMPLES))
    try:
        loss = module.loss(value, Microbatch(tokens=batch, targets=batch, weight=1.0, dropout=dropout))
        if loss.shape:
            raise RefusedError(f"the loss of {model.module} has shape {tuple(loss.shape)}; it must be one number")
        loss.backward()
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(f"the loss of {model.module} fails: {type(error).__name__}: {error}") from error


def _cuts(module: UserModule, tp: int) -> bool:
    """Return whether every device of `tp` gets a share of everything that is cut."""
    return all(spec.cut_dim is None or spec.pieces >= tp for spec in _specs(module)) and module.kv_heads % tp == 0


def _specs(module: UserModule) -> list[ParameterSpec]:
    return [spec for layer in range(module.layers) for spec in module.parameters(layer)]


def _counts(module: UserModule, tp: int) -> dict[str, Any]:
    layers = [module.parameters(layer) for layer in range(module.layers)]
    first = {spec.name for spec in layers[0]}
    tied = [spec for spec in layers[-1] if spec.name in first]
    return {
        "parameters": [sum(_size(spec, tp) for spec in specs) for specs in layers],
        "trainable": [sum(_size(spec, tp) for spec in specs if spec.trainable) for specs in layers],
        "tied": sum(_size(spec, tp) for spec in tied),
        "tied_trainable": sum(_size(spec, tp) for spec in tied if spec.trainable),
    }


def _size(spec: ParameterSpec, tp: int) -> int:
    """Return the elements on the device with the largest share."""
    whole = math.prod(spec.shape)
    if spec.cut_dim is None:
        return whole
    rows = max(sum(end - start for start, end in spec.intervals(tp, index)) for index in range(tp))
    return whole // spec.shape[spec.cut_dim] * rows


def main() -> int:
    model, tokens = model_from_dict(json.loads(sys.argv[1])), int(sys.argv[2])
    try:
        found = described(model, tokens)
    except RefusedError as error:
        found = {"problem": str(error)}
    # On a separate line, whatever the module has printed.
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
