"""A plan and its training settings as torchtitan's options, with the modules of each stage by name.

torchtitan runs equal pipelines with equal shares of the batch, so other plans can't be written. It has no ZeRO-1: what
it shards it shards with the weights. Names of modules are those of its llama3 model, and names of options those of its
`JobConfig` (both of torchtitan 0.2.2). torchtitan 0.3 reads no TOML.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.decoder import Family
from sailor_cloud.model.job import Job, Optimizer, Schedule, SumFormat, Training
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Pipeline, PipelineSchedule, Plan, Recompute, Stage

# In selective checkpointing, 2 means every second layer. Source: comments in torchtitan's train_configs (2025).
_CHECKPOINT: dict[Recompute, dict[str, str]] = {
    Recompute.NONE: {"mode": "none"},
    Recompute.SELECTIVE: {"mode": "selective", "selective_ac_option": "2"},
    Recompute.FULL: {"mode": "full"},
}

# As in sailor_runtime.training.optimizer.
ADAM = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8}
COSINE_FLOOR = 0.1
# torchtitan always clips; no gradient has this norm.
_NO_CLIPPING = 1e9

_VERSION = "For torchtitan 0.2. torchtitan 0.3 reads no TOML, and its head is named lm_head instead of output."

# Families whose modules torchtitan's models name as its llama3 does.
_NAMED_ALIKE = (Family.LLAMA, Family.QWEN3, Family.QWEN3_MOE)


def torchtitan_options(plan: Plan, *, layers: int, training: Training) -> dict[str, Any]:
    """Return the options, by section. `layers` counts embedding and head, as stages do. Raises RequestError."""
    if problems := list(_unlike(plan)):
        raise RequestError(problems)
    first, replicas = plan.pipelines[0], len(plan.pipelines)
    # Without pipeline parallelism, torchtitan has no microbatches and accumulates the gradients of local batches.
    local = first.samples if len(first.stages) > 1 else first.microbatch_size
    return {
        "parallelism": {
            "pipeline_parallel_degree": len(first.stages),
            "tensor_parallel_degree": first.stages[0].tp,
            "data_parallel_replicate_degree": 1 if plan.zero_stage == 3 else replicas,
            "data_parallel_shard_degree": replicas if plan.zero_stage == 3 else 1,
            "pipeline_parallel_schedule": "1F1B",
            "pipeline_parallel_microbatch_size": first.microbatch_size,
            "module_fqns_per_model_part": [_modules(stage, layers) for stage in first.stages],
        },
        "training": {
            "seq_len": training.sequence_length,
            "steps": training.steps or 0,
            "local_batch_size": local,
            "global_batch_size": first.samples * replicas,
            "max_norm": training.gradient_clipping or _NO_CLIPPING,
            "mixed_precision_param": "bfloat16" if training.precision is Precision.BF16 else "float32",
        },
        "optimizer": {"name": "AdamW", "lr": training.learning_rate, **ADAM, "weight_decay": training.weight_decay},
        "lr_scheduler": {"warmup_steps": training.warmup_steps, **_decay(training.schedule)},
        "activation_checkpoint": _CHECKPOINT[first.stages[0].recompute],
        "compile": {"enable": training.compile},
        "debug": {"seed": training.seed},
    }


def _decay(schedule: Schedule) -> dict[str, Any]:
    if schedule is Schedule.CONSTANT:
        return {"decay_ratio": 0.0}
    return {"decay_type": "cosine", "min_lr_factor": COSINE_FLOOR}


def differences(job: Job, plan: Plan) -> list[str]:
    """Return the settings of a job that the options leave out, and those that torchtitan applies differently."""
    training, first = job.training, plan.pipelines[0]
    named = {
        "model sizes": True,
        "data": True,
        "checkpoint": True,
        "model.weights": job.model is not None and job.model.weights is not None,
        "training.dropout": training.dropout > 0.0,
        "training.max_loss_rise": training.max_loss_rise is not None,
        "training.sums": training.sums is not SumFormat.FP32,
        "training.sync_every": training.sync_every is not None,
    }
    found = [f"Not exported: {', '.join(name for name, given in named.items() if given)}."]
    found.append("The same seed gives other weights and another order of data than in sailor-cloud.")
    if training.weight_decay > 0.0:
        found.append("torchtitan decays all weights; in sailor-cloud only those with two or more dimensions decay.")
    if training.optimizer is Optimizer.SGD:
        found.append("The job's optimizer is sgd, which torchtitan lacks: name and lr below are no equivalent.")
    if training.precision in (Precision.FP16, Precision.TF32):
        found.append(f"The job's precision is {training.precision}; torchtitan's mixed precision is bfloat16 only.")
    if training.precision is Precision.BF16 and plan.zero_stage != 3 and _several_devices(first):
        found.append("torchtitan trains pipeline and tensor parallelism without sharding in float32, not bfloat16.")
    return found


def _modules(stage: Stage, layers: int) -> list[str]:
    """Return the names of a stage's modules: layer 0 is the embedding, the last one norm and head."""
    found = []
    for layer in stage.layers:
        if layer == 0:
            found.append("tok_embeddings")
        elif layer == layers - 1:
            found += ["norm", "output"]
        else:
            found.append(f"layers.{layer - 1}")
    return found


def _unlike(plan: Plan) -> Iterator[Problem]:
    first = plan.pipelines[0]
    for pipeline in plan.pipelines[1:]:
        place = f"plan.pipelines[{pipeline.id}]"
        cuts = [(stage.first_layer, stage.end_layer) for stage in pipeline.stages]
        if cuts != [(stage.first_layer, stage.end_layer) for stage in first.stages]:
            hint = "plan with --restrict one-accelerator --restrict one-zone"
            yield Problem(path=place, message="is cut unlike the first, and torchtitan cuts all alike", hint=hint)
        if (pipeline.microbatch_size, pipeline.microbatches) != (first.microbatch_size, first.microbatches):
            message = (
                f"trains {pipeline.microbatches} x {pipeline.microbatch_size} samples and the first "
                f"{first.microbatches} x {first.microbatch_size}; torchtitan gives every pipeline the same"
            )
            yield Problem(path=place, message=message, hint="plan with --restrict even-batches")
    if plan.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE:
        message = "is zero-bubble; torchtitan's zero-bubble schedules require several stages per device"
        yield Problem(path="plan.pipeline_schedule", message=message, hint="plan without training.zero_bubble")
    if plan.pipeline_schedule is PipelineSchedule.INTERLEAVED:
        message = "is interleaved; the export knows stages with one range of layers"
        yield Problem(path="plan.pipeline_schedule", message=message, hint="plan without training.interleaved")
    if len(plan.pipelines) > 1 and (problem := _replicas(plan.zero_stage, several=_several_devices(first))):
        yield problem
    if first.microbatches < len(first.stages):
        message = (
            f"runs {first.microbatches} microbatches through {len(first.stages)} stages; torch's 1F1B needs at least as"
            " many microbatches as stages"
        )
        yield Problem(path="plan.pipelines[0]", message=message, hint="plan with --engine fsdp, which needs them too")
    degrees = sorted({stage.tp for pipeline in plan.pipelines for stage in pipeline.stages})
    if len(degrees) > 1:
        yield Problem(path="plan.pipelines", message=f"stages have tp {degrees}, and torchtitan has one for all")
    if len({stage.recompute for stage in first.stages}) > 1:
        yield Problem(
            path="plan.pipelines", message="stages recompute differently, and torchtitan has one mode for all"
        )


def _replicas(zero_stage: int, *, several: bool) -> Problem | None:
    """Return why torchtitan can't train several pipelines at a ZeRO stage; `several`: they have several devices.

    Source: parallelize_llama and apply_ddp, torchtitan 0.2.2.
    """
    if several:
        hint = "plan with --engine fsdp and training.max_zero_stage: 3, or simulate a layout with zero=3"
    else:
        hint = "plan with training.max_zero_stage: 0"
    if zero_stage in (1, 2):
        message = f"is {zero_stage}; torchtitan shards weights too (ZeRO-3) or nothing"
    elif zero_stage == 0 and several:
        message = "is 0; torchtitan replicates pipelines of one device only, others must shard weights (ZeRO-3)"
    else:
        return None
    return Problem(path="plan.zero_stage", message=message, hint=hint)


def _several_devices(pipeline: Pipeline) -> bool:
    return len(pipeline.stages) > 1 or pipeline.stages[0].tp > 1


def as_toml(options: dict[str, Any], *, family: Family | None, notes: Sequence[str] = ()) -> str:
    """Return the options as TOML; for values of these kinds, it equals JSON. The notes are comments.

    The first comment names the version of torchtitan. Another one says so if torchtitan has no model of the family,
    whose modules then need other names.
    """
    renamed = f"Modules are named as in torchtitan's llama3, which is not {family or 'the job'}'s: rename them."
    comments = [_VERSION, *([] if family in _NAMED_ALIKE else [renamed]), *notes]
    sections = ["\n".join(f"# {comment}" for comment in comments)]
    for section, values in options.items():
        lines = [f"[{section}]"]
        for name, value in values.items():
            if isinstance(value, list):
                rows = "".join(f"  {json.dumps(row)},\n" for row in value)
                lines.append(f"{name} = [\n{rows}]")
            else:
                lines.append(f"{name} = {json.dumps(value)}")
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"
