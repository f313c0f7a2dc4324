"""Translates a PlanDocument and its nodes into the spec that the runtime reads."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import Plan
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.simulator.money import CHECKED_STEPS, MOST_REFERENCE_FLOPS, reference_flops
from sailor_runtime import spec as rt


class ComparisonModel(StrEnum):
    """The model that a plan trains for the comparison with one process."""

    MODEL = "the model"
    NARROW_COPY = "a narrow copy of the model"
    NOTHING = "nothing"


def comparison_model(job: Job, decoder: Decoder) -> ComparisonModel:
    """Return what is compared: one process may take a minute, and the sizes in a user's own module are fixed."""
    if reference_flops(job, decoder) <= MOST_REFERENCE_FLOPS:
        return ComparisonModel.MODEL
    return ComparisonModel.NARROW_COPY if decoder.module is None else ComparisonModel.NOTHING


def plan_hash(plan: Plan) -> str:
    """Return the SHA-256 of the plan's canonical JSON; agents refuse commands for another plan."""
    from pydantic import TypeAdapter

    value = TypeAdapter(Plan).dump_python(plan, mode="json")
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def must_use_sockets(nodes: Iterable[ReachableNode]) -> bool:
    """Whether NCCL must use sockets on the nodes of a generation, because all ranks need one kind of network.

    On bought nodes that is so unless all have EFA and are in one zone. A cluster's nodes use what its owner has set up.
    """
    bought = [node for node in nodes if _is_bought(node)]
    return bool(bought) and not (all(node.efa for node in bought) and len({node.zone for node in bought}) == 1)


def _is_bought(node: ReachableNode) -> bool:
    return not providers.on_this_machine(node.provider) and providers.of(node.provider).scheduler is None


def build_spec(
    document: PlanDocument,
    decoder: Decoder,
    nodes: Mapping[str, ReachableNode],
    *,
    run_id: str,
    generation: int,
    master_port: int,
    checkpoint_directory: str,
    expires_at: datetime,
    steps: int | None = None,
    saved_step: int = 0,
    check: bool = True,
    code_sha256: str | None = None,
    sockets: bool = False,
) -> rt.RunSpec:
    """Return the spec of one generation. Raises RequestError if the runtime can't do what the job asks.

    `steps` is the last step of the whole run, also if the document plans only the rest. `saved_step` is the newest
    saved step. `check`: compare with one process, as `comparison_model` says, and calibrate before training.
    `code_sha256` is the hash of the user's code, which has the model's own module. `sockets`: see `must_use_sockets`.
    """
    plan, prediction, job = document.plan, document.prediction, document.job
    if plan is None or prediction is None or job.model is None:
        raise RequestError("the document holds no plan; it is infeasible")
    last_step = steps if steps is not None else job.training.steps
    if last_step is None:
        raise RequestError("training.steps is missing; a run needs the number of steps")
    training, compared = job.training, comparison_model(job, decoder)
    return rt.RunSpec(
        spec_version=rt.SPEC_VERSION,
        run=run_id,
        generation=generation,
        plan_hash=plan_hash(plan),
        zero_stage=plan.zero_stage,
        model=dataclasses.replace(
            model_spec(decoder),
            weights=job.model.weights,
            code=None if code_sha256 is None else f"code/{code_sha256}",
            setup=job.setup,
            seed=training.seed,
        ),
        training=rt.TrainingSpec(
            global_batch_size=training.global_batch_size,
            sequence_length=training.sequence_length,
            steps=last_step,
            optimizer=training.optimizer.value,
            learning_rate=training.learning_rate,
            weight_decay=training.weight_decay,
            schedule=training.schedule.value,
            warmup_steps=training.warmup_steps,
            gradient_clipping=training.gradient_clipping,
            dropout=training.dropout,
            precision=plan.precision.value,
            seed=training.seed,
            max_loss_rise=training.max_loss_rise,
            sync_every=training.sync_every,
            sums=training.sums.value,
            compile=training.compile,
        ),
        data=rt.DataSpec(source=job.data.source, format=job.data.format.value, tokenizer=job.data.tokenizer),
        checkpoint=rt.CheckpointSpec(
            directory=checkpoint_directory,
            every_s=job.checkpoint.every,
            keep=job.checkpoint.keep,
            saved_step=saved_step,
        ),
        nodes=tuple(
            rt.NodeSpec(
                id=node.id,
                address=node.private_address,
                accelerator=node.accelerator,
                devices=node.devices,
                zone=node.zone,
                cloud=node.provider,
            )
            for node in sorted(nodes.values(), key=lambda node: node.id)
        ),
        pipelines=_pipelines(plan, decoder.layers),
        master_address=nodes[plan.pipelines[0].stages[0].node].private_address,
        master_port=master_port,
        predicted_iteration_s=prediction.iteration_s_replay,
        verify_steps=CHECKED_STEPS if check and compared is not ComparisonModel.NOTHING else 0,
        calibrate=check,
        expires_at=expires_at.timestamp(),
        pipeline_schedule=plan.pipeline_schedule.value,
        verify_narrow=compared is ComparisonModel.NARROW_COPY,
        sockets=sockets,
    )


def model_spec(decoder: Decoder) -> rt.ModelSpec:
    """Return the sizes that the runtime needs."""
    return rt.ModelSpec(
        model_type=decoder.family.value,
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        blocks=decoder.blocks,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        ffn_size=decoder.ffn_size,
        max_positions=decoder.max_positions,
        embedding_size=decoder.embedding_size,
        tied_head=decoder.tied_head,
        config=decoder.config,
        module=decoder.module,
        whole_experts=decoder.experts is not None and decoder.experts.whole,
    )


def _pipelines(plan: Plan, layers: int) -> tuple[rt.PipelineSpec, ...]:
    pipelines = []
    rank = 0
    for pipeline in plan.pipelines:
        stages = []
        for stage in pipeline.stages:
            ranks = tuple(range(rank, rank + stage.tp))
            rank += stage.tp
            stages.append(
                rt.StageSpec(
                    first_layer=stage.first_layer,
                    end_layer=stage.end_layer,
                    node=stage.node,
                    devices=stage.devices,
                    ranks=ranks,
                    # Embedding and head keep little, and the head's backward pass follows its forward pass at once.
                    recompute=tuple(layer for layer in stage.recompute.blocks(layers) if layer in stage.layers),
                    later_ranges=stage.later_ranges,
                )
            )
        pipelines.append(
            rt.PipelineSpec(
                microbatch_size=pipeline.microbatch_size,
                microbatches=pipeline.microbatches,
                stages=tuple(stages),
            )
        )
    return tuple(pipelines)
