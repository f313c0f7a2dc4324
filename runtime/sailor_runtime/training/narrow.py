"""A narrow copy of a run, to check its plan against one process, which computes in float64 on a processor.

With billions of parameters one process takes days, and float64 does not fit the plan's devices. The copy keeps the
plan's choices: layers and their cuts, ranks, tensor-parallel degrees, schedule, ZeRO stage, heads and experts. Its
layers are narrow, its samples short and few.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from sailor_runtime.spec import ModelSpec, PipelineSpec, RunSpec
from sailor_runtime.training.pipeline.schedule import microbatches_per_round

# Every tensor-parallel degree up to 64 divides the MLP; a head of 8 has an even number of rotated columns.
_HEAD, _FFN, _EXPERT, _VOCABULARY, _TOKENS = 8, 64, 16, 512, 8
_MICROBATCH_SIZE = 2
# Widths of experts, which have defaults in a family's configuration.
_EXPERTS = {
    "qwen2_moe": ("moe_intermediate_size", "shared_expert_intermediate_size"),
    "qwen3_moe": ("moe_intermediate_size",),
}


def narrowed(spec: RunSpec) -> RunSpec:
    """Return the spec of a narrow copy; a user's own module has fixed sizes and can't be copied."""
    pipelines = tuple(_shortened(pipeline) for pipeline in spec.pipelines)
    batch = sum(pipeline.microbatch_size * pipeline.microbatches for pipeline in pipelines)
    training = replace(spec.training, global_batch_size=batch, sequence_length=_TOKENS)
    return replace(spec, model=_model(spec.model), training=training, pipelines=pipelines)


def _shortened(pipeline: PipelineSpec) -> PipelineSpec:
    """Return a pipeline with few samples, but with enough microbatches to fill it twice, and the same remainder.

    If stages alternate between several ranges, these are two rounds.
    """
    stages, count = len(pipeline.stages), pipeline.microbatches
    fewer = 2 * stages + count % stages
    if any(stage.later_ranges for stage in pipeline.stages):
        fewer = 2 * (microbatches_per_round(count, stages) or count)
    return replace(
        pipeline,
        microbatch_size=min(_MICROBATCH_SIZE, pipeline.microbatch_size),
        microbatches=min(count, fewer),
    )


def _rope(given: dict[str, Any], head: int) -> dict[str, Any]:
    """Return rotary settings whose lists have an element per pair of columns of a narrow head."""
    return {
        name: value[: len(value) * _HEAD // head] if isinstance(value, list) else value for name, value in given.items()
    }


def _model(model: ModelSpec) -> ModelSpec:
    hidden = model.heads * _HEAD
    config: dict[str, Any] = json.loads(model.config) if model.config else {}
    head = config.get("head_dim") or model.hidden_size // model.heads
    if "head_dim" in config:
        config["head_dim"] = _HEAD
    config |= dict.fromkeys(_EXPERTS.get(model.model_type, ()), _EXPERT)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(name), dict):
            config[name] = _rope(config[name], head)
    return replace(
        model,
        vocab_size=min(_VOCABULARY, model.vocab_size),
        hidden_size=hidden,
        ffn_size=_FFN,
        embedding_size=hidden if model.embedding_size == model.hidden_size else hidden // 2,
        config=json.dumps(config, sort_keys=True),
        weights=None,
    )
