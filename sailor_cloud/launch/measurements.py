"""Measurements of finished runs next to today's predictions of them; later plans learn from these rows."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

from sailor_cloud import catalog, network, resources, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.errors import RequestError, SailorError
from sailor_cloud.interchange.sailor_names import MODELS, their_accelerator
from sailor_cloud.launch.start import base_of
from sailor_cloud.launch.telemetry.generation_log import RecordedGeneration, recorded_generations
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.network import Network
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.history import past_runs
from sailor_cloud.simulator.resimulate import simulate_document
from sailor_cloud.simulator.timing.uncertainty import Kind
from sailor_cloud.workload import ComputeProfiles
from sailor_cloud.workload.own_measurements import MeasuredRun, OwnMeasurements, this_version

# Steps after the pace has settled; with fewer, a time is no measurement.
FEWEST_STEPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Every plan that trained, oldest first; for other runs, the reason why they are left out."""

    runs: tuple[MeasuredRun, ...]
    left_out: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Data:
    catalog: Catalog
    network: Network
    profiles: ComputeProfiles


def measured_runs(*, job: str | None = None) -> Measured:
    """Return the measurements of this user's runs, each with a prediction that ignores measurements."""
    folder = resources.home() / "runs"
    known = dataclasses.replace(workload.profiles.load(), own=OwnMeasurements())
    data = _Data(catalog=catalog.load(), network=network.load(), profiles=known)
    runs: list[MeasuredRun] = []
    left_out: list[tuple[str, str]] = []
    for past in past_runs(folder, job=job):
        try:
            run = RunFolder.open(past.run_id, root=folder)
            found = [
                _measured(run, leg, data) for leg in recorded_generations(run) if leg.monitor.steps_done >= FEWEST_STEPS
            ]
        except (SailorError, OSError) as error:
            left_out.append((past.run_id, str(error)))
            continue
        if not found:
            left_out.append((past.run_id, f"no plan of it trained for {FEWEST_STEPS} steps"))
        runs += found
    return Measured(runs=tuple(runs), left_out=tuple(left_out))


def _measured(run: RunFolder, leg: RecordedGeneration, data: _Data) -> MeasuredRun:
    document, monitor = leg.document, leg.monitor
    plan, seconds = document.plan, monitor.measured_iteration_s
    if plan is None or seconds is None:
        raise RequestError("its plan or its times are missing")
    if document.job.run is not None:
        raise RequestError("it ran a command, and predictions are of sailor's own training")
    decoder = workload.job_decoder(document.job, base=base_of(run))
    evaluation = simulate_document(
        document,
        catalog=data.catalog,
        network=data.network,
        profiles=data.profiles,
        decoder=decoder,
        as_of=document.as_of,
    ).evaluation
    prediction, unsure = evaluation.prediction, evaluation.uncertainty
    first, training = plan.pipelines[0], document.job.training
    shapes = {
        (pipeline.microbatch_size, tuple((stage.ranges, stage.tp) for stage in pipeline.stages))
        for pipeline in plan.pipelines
    }
    alike = len(shapes) == 1
    zones, errors = unsure.zones or ("", ""), data.profiles.errors
    fullest = max(prediction.memory, key=lambda stage: stage.tensor_bytes)
    node = plan.pipelines[fullest.pipeline].stages[fullest.stage].node
    holder = data.catalog.accelerator(_accelerators(document)[node])
    return MeasuredRun(
        commit=this_version(),
        file=f"runs/{run.run_id}-g{leg.generation}.json",
        model=_model_name(document) or decoder.name,
        nodes_per_stage_by_gpu=_nodes(document) if alike else "",
        n_nodes=len(plan.nodes),
        n_gpus=plan.world_size,
        pp=len(first.stages),
        dp=len(plan.pipelines),
        tp=first.stages[0].tp,
        mbs=first.microbatch_size,
        gbs=training.global_batch_size,
        iteration_time_s=seconds,
        reduce_grads_s="",
        max_mem_bytes="" if monitor.most_memory_bytes is None else str(monitor.most_memory_bytes),
        layers_per_stage=layers_per_stage(plan) if alike else "",
        accelerator=unsure.accelerator,
        precision=training.precision.value,
        decoder=decoder.name,
        sequence_length=training.sequence_length,
        src_zone=zones[0],
        dst_zone=zones[1],
        predicted_s=prediction.iteration_s_replay,
        predicted_bytes=fullest.tensor_bytes,
        layers_error=unsure.half(Kind.LAYERS),
        network_error=unsure.half(Kind.NETWORK),
        chance_error=unsure.half(Kind.CHANCE),
        # A local rank's figure covers its whole process.
        memory_accelerator="" if holder.is_emulated else holder.name,
        memory_error=errors.memory,
        memory_chance_error=errors.memory_repeat,
    )


def layers_per_stage(plan: Plan) -> str:
    """Return the number of layers in each stage of the first pipeline; only a 1F1B plan can be rebuilt from them."""
    if plan.pipeline_schedule is not PipelineSchedule.ONE_F_ONE_B:
        return ""
    return " ".join(str(len(stage.layers)) for stage in plan.pipelines[0].stages)


def _model_name(document: PlanDocument) -> str | None:
    """Return the artifact's name for a model that it also has; None for others."""
    model = document.job.model
    return next((theirs for theirs, ours in MODELS.items() if model is not None and ours == model.preset), None)


def _accelerators(document: PlanDocument) -> dict[str, str]:
    plan, hardware = document.plan, document.inputs.hardware_by_id()
    assert plan is not None
    return {node.id: hardware[node.offer].accelerator for node in plan.nodes}


def _nodes(document: PlanDocument) -> str:
    """Return the nodes of each stage, as '1xA100-40+1xV100-16|2xA100-40'."""
    plan, offers = document.plan, _accelerators(document)
    assert plan is not None
    stages = []
    for position in range(len(plan.pipelines[0].stages)):
        names = Counter(their_accelerator(offers[pipeline.stages[position].node]) for pipeline in plan.pipelines)
        stages.append("+".join(f"{count}x{name}" for name, count in names.items()))
    return "|".join(stages)
