"""Decoders of transformers as layers: its own modules, cut by the family's own tensor-parallel plan."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model import attention
from sailor_runtime.training.model.casts import keep_float64
from sailor_runtime.training.model.cutting import VOCABULARY, Cut, set_parameter
from sailor_runtime.training.model.dropout import Dropout, DropoutMode
from sailor_runtime.training.model.layers import Architecture, Microbatch, StageLayers
from sailor_runtime.training.model.loss import loss_in_chunks, vocabulary_loss
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel

# For families without a pipeline plan: the names of their layers and of their last norm.
_PARTS = {
    "gpt2": ("transformer", "h", "ln_f"),
    "gpt_neo": ("transformer", "h", "ln_f"),
    "opt": ("model.decoder", "layers", "final_layer_norm"),
}
_PLAIN = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "out_proj": "rowwise"}
# Plans for families without one, or with one that computes the same on every device.
_PLANS: dict[str, dict[str, str]] = {
    "gpt2": {
        "h.*.attn.c_attn": "packed_colwise",
        "h.*.attn.c_proj": "rowwise",
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    },
    "gpt_neo": {
        **{f"h.*.attn.attention.{name}": style for name, style in _PLAIN.items()},
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    },
    "opt": {
        **{f"layers.*.self_attn.{name}": style for name, style in _PLAIN.items()},
        "layers.*.fc1": "colwise",
        "layers.*.fc2": "rowwise",
    },
    "phi3": {
        "layers.*.self_attn.qkv_proj": "packed_colwise",
        "layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_up_proj": "packed_colwise",
        "layers.*.mlp.down_proj": "rowwise",
    },
    "qwen2_moe": {
        "layers.*.mlp.shared_expert.gate_proj": "colwise",
        "layers.*.mlp.shared_expert.up_proj": "colwise",
        "layers.*.mlp.shared_expert.down_proj": "rowwise",
    },
}
# The expert-parallel plan for families without one, as transformers has it for others.
_WHOLE_EXPERTS = {
    "layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
    "layers.*.mlp.experts.down_proj": "grouped_gemm",
    "layers.*.mlp.experts": "ep_dispatch_experts",
}
FAMILIES = (
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neo",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "opt",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
)
# Settings that would train another model than one process of transformers does, and their neutral values.
_NEUTRAL = {"router_jitter_noise": 0.0, "output_router_logits": False, "add_cross_attention": False}

_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


def config_of(model: ModelSpec) -> Any:
    """Return transformers' configuration of a model. Raises RefusedError for one that can't be cut into layers."""
    from transformers import AutoConfig

    if model.model_type not in FAMILIES:
        raise RefusedError(f"model type {model.model_type!r} is not supported; supported: {', '.join(FAMILIES)}")
    given = json.loads(model.config) if model.config else {}
    for name, neutral in _NEUTRAL.items():
        if given.get(name, neutral) != neutral:
            raise RefusedError(f"{name} is {given[name]!r} in the model's configuration; only {neutral!r} is supported")
    # Training never pads, and a padding token would keep its row of the embedding from being trained.
    special = dict.fromkeys(_SPECIAL)
    left_out = ("model_type", "dtype", "torch_dtype", "architectures", "transformers_version", "auto_map", *special)
    fields = {name: value for name, value in given.items() if name not in left_out}
    fields = {**fields, **_sizes(model, fields)}
    try:
        config = AutoConfig.for_model(model.model_type, **fields, **special, use_cache=False)
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(f"transformers does not take this configuration: {error}") from error
    if model.model_type not in _PARTS and not {"layers", "norm"} <= set(config.base_model_pp_plan or ()):
        raise RefusedError(f"transformers has no pipeline plan for {model.model_type} with its layers and last norm")
    return config


def _sizes(model: ModelSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec's sizes under transformers' names; lists with one element per block are cut to its blocks."""
    sizes: dict[str, Any] = {
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.blocks,
        "num_attention_heads": model.heads,
        {"gpt2": "n_inner", "opt": "ffn_dim"}.get(model.model_type, "intermediate_size"): model.ffn_size,
        "max_position_embeddings": model.max_positions,
        "tie_word_embeddings": model.tied_head,
    }
    match model.model_type:
        case "gpt2":
            pass
        case "gpt_neo":
            kinds = [kind for pattern, times in given.get("attention_types") or () for kind in list(pattern) * times]
            kinds = kinds or [("global", "local")[block % 2] for block in range(model.blocks)]
            sizes["attention_types"] = [[[kind], 1] for kind in kinds[: model.blocks]]
        case "opt":
            # Only OPT-350m has narrow embeddings, and norms after each sublayer.
            before = given.get("do_layer_norm_before", model.embedding_size == model.hidden_size)
            sizes |= {"word_embed_proj_dim": model.embedding_size, "do_layer_norm_before": before}
        case _:
            sizes["num_key_value_heads"] = model.kv_heads
            if given.get("layer_types"):
                sizes["layer_types"] = given["layer_types"][: model.blocks]
    return sizes


class Transformer(Architecture):
    """A causal language model of transformers: layer 0 embeds, then its decoder layers, then norm, head and loss."""

    def __init__(self, model: ModelSpec) -> None:
        self.config = config_of(model)
        given = json.loads(model.config) if model.config else {}
        self._special = {name: given[name] for name in _SPECIAL if given.get(name) is not None}
        self.layers = model.layers
        self.family = model.model_type
        self._whole_experts = model.whole_experts
        self._causal = self.build("eager", torch.float64)
        base, layers, norm = _PARTS.get(self.family, (self._causal.base_model_prefix, "layers", "norm"))
        self._names = (base, layers, norm)
        self._of_layer = self._grouped()
        plan = dict(self.config.base_model_tp_plan or {}) | _PLANS.get(self.family, {})
        if model.whole_experts:
            plan |= self.config.base_model_ep_plan or _WHOLE_EXPERTS
        plan = {f"{base}.{name}": style for name, style in plan.items()}
        self._embedding = next(
            name for name, module in self._causal.named_modules() if module is self._causal.get_input_embeddings()
        )
        self._cut = Cut(self._causal, {**plan, self._embedding: VOCABULARY, "lm_head": "colwise"})
        self._specs = {layer: tuple(self._spec(name) for name in names) for layer, names in self._of_layer.items()}

    def parameters(self, layer: int) -> tuple[ParameterSpec, ...]:
        return self._specs[layer]

    def first_values(self, layer: int) -> dict[str, Tensor]:
        values = {}
        for root in self._roots(layer):
            module = copy.deepcopy(self._causal.get_submodule(root)).to_empty(device="cpu")
            with torch.no_grad():
                module.apply(self._causal._init_weights)
            values |= {f"{root}.{name}": value.detach() for name, value in module.named_parameters()}
        return {name: values[name] for name in self._of_layer[layer] if name in values}

    def full_model(
        self, values: Callable[[ParameterSpec], Tensor], dtype: torch.dtype, *, dropout: bool
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the model as transformers runs it in one process, and its parameters by name."""
        plain = dropout or self._attention() != attention.FUSED
        causal = self.build("eager" if plain else "sdpa", dtype)
        _give_buffers(causal, causal, torch.device("cpu"))
        parameters = {}
        for spec in {spec.name: spec for specs in self._specs.values() for spec in specs}.values():
            parameters[spec.name] = nn.Parameter(values(spec).to(dtype, copy=True), requires_grad=spec.trainable)
            set_parameter(causal, spec.name, parameters[spec.name])
        if self.config.tie_word_embeddings:
            causal.get_output_embeddings().weight = causal.get_input_embeddings().weight
        return causal.eval(), parameters

    def loss_sum(self, whole: nn.Module, tokens: Tensor, targets: Tensor, dropping: DropoutMode | None) -> Tensor:
        logits = self.logits(whole, tokens, dropping)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

    def dropout_mode(self, dropout: Dropout) -> DropoutMode:
        return DropoutMode(dropout, self.config.num_attention_heads, 0)

    def logits(self, whole: nn.Module, tokens: Tensor, dropping: DropoutMode | None) -> Tensor:
        """Return the logits of transformers' own forward pass of a whole model."""
        handles = []
        if dropping is not None:
            layers = whole.get_submodule(".".join(self._names[:2]))
            for number, block in enumerate(layers.children()):
                begin = lambda module, given, kept, layer=number + 1: dropping.begin(layer)  # noqa: E731
                handles.append(block.register_forward_pre_hook(begin, with_kwargs=True))
            dropping.begin(0)
        with dropping or contextlib.nullcontext(), keep_float64(next(whole.parameters()).dtype):
            logits: Tensor = whole(input_ids=tokens, use_cache=False).logits
        for handle in handles:
            handle.remove()
        return logits

    def describe(self, folder: Path, dtype: torch.dtype) -> None:
        config = copy.deepcopy(self.config)
        # A checkpoint has no tokenizer, except the token numbers in its configuration.
        for name, value in self._special.items():
            setattr(config, name, value)
        config.architectures, config.dtype, config.use_cache = [type(self._causal).__name__], dtype, True
        config.save_pretrained(folder)

    def stage(
        self,
        layers: Sequence[int],
        parallel: TensorParallel,
        device: torch.device,
        dtype: torch.dtype,
        *,
        dropout: bool,
        absent: Collection[str] = (),
    ) -> StageLayers:
        return _Layers(self, layers, parallel, device, dtype, self._attention(dropout=dropout), absent)

    def _attention(self, *, dropout: bool = False) -> str:
        """Return the attention that computes the same as the family's own, with the least memory."""
        if self.family == "gpt_neo":
            # The family's modules accept no other.
            return "eager"
        capped = getattr(self.config, "attn_logit_softcapping", None) is not None
        return attention.NAME if capped or dropout else attention.FUSED

    def build(self, implementation: str, dtype: torch.dtype, tp: int = 1, *, fused: bool = False) -> Any:
        """Return a new model on the meta device with an attention; `tp`: the number of shards of its experts.

        `fused`: GPT-2's activation in one kernel, which keeps two tensors for the backward pass instead of five.
        """
        from transformers import AutoModelForCausalLM

        attention.register()
        config = copy.deepcopy(self.config)
        # The other implementations do not support float64, nor rows that are no multiple of 16 bytes.
        width = getattr(config, "moe_intermediate_size", None) or getattr(config, "intermediate_size", 0)
        if (
            dtype == torch.float64
            or self._whole_experts
            or any(size * dtype.itemsize % (16 * tp) for size in (width, config.hidden_size))
        ):
            config._experts_implementation = "eager"
        if fused and getattr(config, "activation_function", None) in ("gelu_new", "gelu_fast"):
            config.activation_function = "gelu_pytorch_tanh"
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, attn_implementation=implementation)

    def _roots(self, layer: int) -> tuple[str, ...]:
        """Return the modules of a layer."""
        base, layers, norm = self._names
        if 0 < layer < self.layers - 1:
            return (f"{base}.{layers}.{layer - 1}",)
        children = [
            f"{base}.{name}"
            for name, child in self._causal.get_submodule(base).named_children()
            if name != layers and (name in (norm, "project_out")) == (layer > 0) and _has_parameters(child)
        ]
        return (*children, "lm_head") if layer > 0 else tuple(children)

    def _grouped(self) -> dict[int, list[str]]:
        names: dict[int, list[str]] = {}
        for layer in range(self.layers):
            names[layer] = [
                f"{root}.{name}"
                for root in self._roots(layer)
                for name, _ in self._causal.get_submodule(root).named_parameters()
            ]
        known = {name for found in names.values() for name in found}
        if missing := [name for name, _ in self._causal.named_parameters() if name not in known]:
            raise RefusedError(f"{self.family} can't be cut into layers: {missing[0]} belongs to none")
        return names

    def _spec(self, name: str) -> ParameterSpec:
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            return self._cut.parameter(f"{self._embedding}.weight")
        return self._cut.parameter(name)

    def cut(self, causal: nn.Module, layer: int, parallel: TensorParallel) -> None:
        for root in self._roots(layer):
            self._cut.install(root, causal.get_submodule(root), parallel)

    @property
    def names(self) -> tuple[str, str, str]:
        return self._names

    def modules_of(self, layer: int) -> tuple[str, ...]:
        return self._roots(layer)


# Positional and named arguments of a module's forward pass.
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _Layers(StageLayers):
    """The layers of one stage on one rank, run by the model's own forward passes around and between them."""

    def __init__(
        self,
        architecture: Transformer,
        layers: Sequence[int],
        parallel: TensorParallel,
        device: torch.device,
        dtype: torch.dtype,
        implementation: str,
        absent: Collection[str],
    ) -> None:
        self._architecture = architecture
        self._parallel = parallel
        self._last = architecture.layers - 1
        self._given: dict[tuple[int, ...], list[_Arguments]] = {}
        causal = architecture.build(implementation, dtype, parallel.size, fused=True).eval()
        base_name, blocks_name, norm_name = architecture.names
        base = causal.get_submodule(base_name)
        for root in (f"{base_name}.{name}" for name, _ in base.named_children()):
            if root not in (f"{base_name}.{blocks_name}",):
                _give_buffers(causal, causal.get_submodule(root), device)
        self.parameters: dict[str, nn.Parameter] = {}
        for layer in layers:
            architecture.cut(causal, layer, parallel)
            for root in architecture.modules_of(layer):
                _give_buffers(causal, causal.get_submodule(root), device)
            for spec, name in zip(architecture.parameters(layer), architecture._of_layer[layer], strict=True):
                if spec.name not in self.parameters:
                    self.parameters[spec.name] = spec.empty_shard(
                        parallel.size, parallel.index, device, dtype, absent=spec.name in absent
                    )
                set_parameter(causal, name, self.parameters[spec.name])
        self._dtype, self._device = dtype, device
        blocks = base.get_submodule(blocks_name)
        self._blocks = {layer: blocks[layer - 1] for layer in layers if 0 < layer < self._last}
        self._count = len(blocks)
        self._base, self._blocks_name = base, blocks_name
        self._head = causal
        final = _Final([getattr(base, name, None) for name in (norm_name, "project_out")])
        for name in (norm_name, "project_out"):
            if getattr(base, name, None) is not None:
                setattr(base, name, nn.Identity() if name == norm_name else None)
        parent, _, child = base_name.rpartition(".")
        setattr(causal.get_submodule(parent), child, final)
        self._unused = () if 0 in layers else tuple(r.rpartition(".")[2] for r in architecture.modules_of(0))
        setattr(base, blocks_name, nn.ModuleList())
        # With this name transformers makes no mask, which the embedding does not need.
        self._config = base.config
        self._maskless = copy.copy(base.config)
        self._maskless._attn_implementation_internal = "embedding"
        size = parallel.size
        heads = self._config.num_attention_heads
        groups = getattr(self._config, "num_key_value_heads", None) or heads
        self._heads = (heads, groups * parallel.index // size * (heads // groups))

    def modules(self, layer: int) -> tuple[nn.Module, ...]:
        return (self._blocks[layer],) if layer in self._blocks else ()

    def __call__(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        dropping: Any = contextlib.nullcontext()
        if microbatch.dropout.probability > 0.0:
            dropping = DropoutMode(microbatch.dropout, *self._heads)
            dropping.begin(layer)
        with keep_float64(self._dtype):
            # Looked up before anything is dropped, since the model's own code would drop meanwhile.
            given = self._arguments(value) if layer in self._blocks and value is not None else []
            with dropping:
                result = self._run(layer, value, microbatch, given)
        self._parallel.forget()
        return result

    def _run(self, layer: int, value: Tensor | None, microbatch: Microbatch, given: list[_Arguments]) -> Tensor:
        if layer == 0:
            self._base.config = self._maskless
            embedded: Tensor = self._base(input_ids=microbatch.tokens, use_cache=False)[0]
            return embedded
        if layer == self._last:
            assert value is not None
            own = self.parameters
            trained = [own[spec.name] for spec in self._architecture.parameters(layer) if spec.trainable]
            loss_of = functools.partial(self._loss, microbatch.weight)
            rows = -(-self._architecture.config.vocab_size // self._parallel.size)
            return loss_in_chunks(loss_of, value, microbatch.targets, trained, rows)
        args, kwargs = given[layer - 1]
        result = self._blocks[layer](value, *args, **kwargs)
        return result[0] if isinstance(result, tuple) else result

    def _loss(self, weight: float, value: Tensor, targets: Tensor) -> Tensor:
        logits = self._head(inputs_embeds=value, use_cache=False).logits
        return vocabulary_loss(logits, targets, weight, self._architecture.config.vocab_size, self._parallel)

    def _arguments(self, value: Tensor) -> list[_Arguments]:
        """Return the model's arguments to each decoder layer besides hidden states: masks, rotations, positions."""
        key = tuple(value.shape)
        if key not in self._given:
            self._given = {key: self._probed(value)}
        return self._given[key]

    @torch.no_grad()
    def _probed(self, value: Tensor) -> list[_Arguments]:
        found: list[_Arguments] = []
        replaced = {
            name: child
            for name, child in self._base.named_children()
            if name != self._blocks_name and _has_parameters(child)
        }
        probes = nn.ModuleList(_Probe(found, self._architecture.family == "gpt_neo") for _ in range(self._count))
        self._base.config = self._config
        setattr(self._base, self._blocks_name, probes)
        for name in replaced:
            self._base._modules[name] = _Nothing()
        try:
            self._base(inputs_embeds=torch.zeros_like(value), use_cache=False)
        finally:
            setattr(self._base, self._blocks_name, nn.ModuleList())
            self._base._modules.update(replaced)
        return found


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


class _Probe(nn.Module):
    def __init__(self, found: list[Any], tuples: bool) -> None:
        super().__init__()
        self._found, self._tuples = found, tuples

    def forward(self, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        self._found.append((args, kwargs))
        return (value,) if self._tuples else value


class _Nothing(nn.Module):
    """Replaces an embedding while arguments of layers are looked up."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(())


class _Final(nn.Module):
    """The code between the decoder layers and the head; for the head's forward pass it is the whole decoder."""

    def __init__(self, parts: Sequence[nn.Module | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part for part in parts if part is not None])

    def forward(self, *args: Any, inputs_embeds: Tensor, **kwargs: Any) -> _Output:
        for part in self.parts:
            inputs_embeds = part(inputs_embeds)
        return _Output(inputs_embeds)


class _Output:
    """An output of a decoder with only hidden states."""

    def __init__(self, last_hidden_state: Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: int) -> Tensor:
        assert index == 0
        return self.last_hidden_state

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _give_buffers(causal: Any, root: nn.Module, device: torch.device) -> None:
    """Compute the buffers below `root`, such as rotary frequencies; parameters stay on the meta device."""
    for module in root.modules():
        names = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if not names:
            continue
        for name in names:
            module._buffers[name] = torch.empty_like(module._buffers[name], device="cpu")
        with torch.no_grad():
            causal._init_weights(module)
        for name in names:
            module._buffers[name] = module._buffers[name].to(device)
