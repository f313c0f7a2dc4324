"""`python -m sailor_runtime.training.describe MODEL TOKENS`: checks a user's module in one process, on the meta device.

MODEL is a model of a spec as JSON. Prints one line of JSON, or `problem`. It has an entry for each tensor-parallel
degree that can cut the module: the parameters of each layer on one device, how many of them are trained, and those that
a later layer shares. No memory is allocated for weights or activations: only the shapes of TOKENS tokens pass through
all layers. `dropouts` are the dropouts inside the layers: function, probability, layers, and whether the job's
dropout replaces them.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, model_from_dict
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.user_module import UserModule

_DEGREES = (1, 2, 4, 8, 16)
_SAMPLES = 2
# Where each function takes its probability. The runtime replaces only the first of them.
_DROPOUTS: dict[Any, tuple[int, str]] = {
    functional.dropout: (1, "p"),
    functional.dropout1d: (1, "p"),
    functional.dropout2d: (1, "p"),
    functional.dropout3d: (1, "p"),
    functional.alpha_dropout: (1, "p"),
    functional.feature_alpha_dropout: (1, "p"),
    functional.multi_head_attention_forward: (10, "dropout_p"),
}


# In the messages of operations that need the values of tensors on the meta device.
_NEEDS_VALUES = ("meta tensor", "Meta tensor", "meta device", "data-independent")


class _Dropouts(TorchFunctionMode):
    """Records the layers with dropout, by function and probability above 0; modules call it in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = 0
        self.found: dict[tuple[Any, float], list[int]] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function in _DROPOUTS:
            position, name = _DROPOUTS[function]
            probability = float(args[position] if len(args) > position else given.get(name, 0.0))
            layers = self.found.setdefault((function, probability), []) if probability > 0.0 else []
            layers += [self.layer] if self.layer not in layers else []
        return function(*args, **given)


class _RandomNumbers(TorchDispatchMode):
    """Records operations that draw from torch's default generators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded in function.tags and given.get("generator") is None:
            self.found.append(str(function))
        return function(*args, **given)


def described(model: ModelSpec, tokens: int) -> dict[str, Any]:
    """Return the module's parameters by degree. Raises RefusedError for one that can't be trained."""
    with torch.device("meta"):
        module = UserModule(model)
        _refuse_batch_norm(module)
        dropouts, numbers = _Dropouts(), _RandomNumbers()
        with dropouts, numbers:
            _pass_through(module, model, tokens, dropouts, numbers)
            # Layers may use a parameter only in long samples, such as one that pools blocks of tokens.
            if tokens < model.max_positions and _without_gradients(module):
                _pass_through(module, model, model.max_positions, dropouts, numbers)
        _check_gradients(module)
    return {
        "degrees": {str(tp): _counts(module, tp) for tp in _DEGREES if _cuts(module, tp)},
        "dropouts": [
            [function.__name__, probability, layers, function is functional.dropout]
            for (function, probability), layers in dropouts.found.items()
        ],
    }


def _refuse_batch_norm(module: UserModule) -> None:
    for name, part in module.root.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise RefusedError(
                f"{name} of {module.name} is a {type(part).__name__}: the statistics of a batch depend on how a plan "
                "cuts it into microbatches; use LayerNorm, RMSNorm or GroupNorm"
            )


def _pass_through(
    module: UserModule, model: ModelSpec, tokens: int, dropouts: _Dropouts, numbers: _RandomNumbers
) -> None:
    """Send shapes forward and back; each layer's output must be a valid input of the next one."""
    batch = torch.zeros((_SAMPLES, tokens), dtype=torch.int64)
    value = batch
    for layer in range(module.layers):
        dropouts.layer = layer
        try:
            value = module.layer(module.root, layer)(value)
        except Exception as error:
            raise _failed(f"layer {layer} of {model.module}", error) from error
        if numbers.found:
            raise RefusedError(
                f"layer {layer} of {model.module} draws random numbers ({numbers.found[0]}), which would differ under "
                "each plan. Dropout must be nn.Dropout, or functional.dropout with training=self.training; "
                "scaled_dot_product_attention needs dropout_p=0"
            )
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
        raise _failed(f"the loss of {model.module}", error) from error


def _failed(part: str, error: Exception) -> RefusedError:
    """Return the refusal of a part that fails on the meta device."""
    # torch has no common type for what needs the values of tensors; only its messages name the device.
    if any(word in str(error) for word in _NEEDS_VALUES):
        return RefusedError(
            f"{part} depends on values of tensors, as with 'if mask.any()', .item() or x[mask], but before a purchase "
            f"only shapes are known; compute everything and choose by torch.where or a product with the mask ({error})"
        )
    return RefusedError(f"{part} fails: {type(error).__name__}: {error}")


def _without_gradients(module: UserModule) -> list[str]:
    return [name for name, value in module.root.named_parameters() if value.requires_grad and value.grad is None]


def _check_gradients(module: UserModule) -> None:
    """Raise RefusedError for parameters without a gradient or with a sparse one."""
    if unused := _without_gradients(module):
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise RefusedError(
            f"{unused[0]}{more} of {module.name} have no effect on the loss, but weight decay would move them; remove "
            "them, or freeze them with requires_grad_(False)"
        )
    gradients = {name: value.grad for name, value in module.root.named_parameters() if value.grad is not None}
    if sparse := [name for name, gradient in gradients.items() if gradient.layout != torch.strided]:
        raise RefusedError(
            f"{sparse[0]} of {module.name} has a sparse gradient, which can't be all-reduced; leave out sparse=True"
        )


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
