"""Turns the measured iterations of Sailor's artifact into plans of ours, in a scenario made of its imported data."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from published import Unread

from sailor_cloud import catalog, network, workload
from sailor_cloud.errors import SailorError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.interchange.sailor_names import MODELS, our_accelerator
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Confidence, Market, Offer, Precision, Provider, ZoneConfidence
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.simulator import Scenario, engine_named
from sailor_cloud.workload import Attention, profiles

ZONE = "us-central1-a"
AS_OF = date(2025, 9, 1)
COLUMNS = frozenset(
    {"file", "model", "nodes_per_stage_by_gpu", "layers_per_stage"}
    | {"tp", "mbs", "gbs", "iteration_time_s", "max_mem_bytes"}
)
_SETS = {frozenset({"GH-96"}): "GH200"}
# The measured engine: DeepSpeed with plain attention.
ENGINE = dataclasses.replace(engine_named("deepspeed"), attention=Attention.PLAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured configuration; `gpus[stage][replica]` and `layers[stage]` describe its plan."""

    name: str
    model: str
    set_name: str
    gpus: tuple[tuple[str, ...], ...]
    layers: tuple[int, ...]
    tp: int
    microbatch_size: int
    batch: int
    iteration_s: float
    peak_bytes: float | None

    @property
    def replicas(self) -> int:
        return len(self.gpus[0])

    @property
    def microbatches(self) -> int:
        return -(-self.batch // (self.microbatch_size * self.replicas))


def read_measured(path: Path) -> tuple[tuple[Measured, ...], list[Unread]]:
    """Read a table of measured iterations; a set is a kind of cluster. Rows that can't be read are listed."""
    rows, unread = [], []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for raw in csv.DictReader(file, restval=""):
            try:
                rows.append(_row(raw))
            except (ValueError, SailorError) as error:
                unread.append(Unread(id=raw["file"], source=path.name, reason=str(error)))
    return tuple(rows), unread


def base_scenario(artifact: Path) -> Scenario:
    """Return a scenario on the artifact's own profiles and curves, without job-specific sizes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        import_artifact(artifact, out, precision=Precision.FP32, as_of=AS_OF)
        return Scenario(
            job=_job(1),
            decoder=workload.decoder(_job(1).model),
            offers={},
            catalog=catalog.load(),
            network=network.load(profiles=out / "bandwidth_profiles"),
            profiles=profiles.load(profiles=out / "compute_profiles"),
            as_of=datetime(AS_OF.year, AS_OF.month, AS_OF.day, tzinfo=UTC),
            engine=ENGINE,
        )


def plan_of(row: Measured, scenario: Scenario) -> tuple[Plan, Scenario]:
    """Return the plan of a measured configuration and the scenario with its job and offers."""
    names = sorted({gpu for stage in row.gpus for gpu in stage})
    offers = {name: _offer(name, row.tp) for name in names}
    job = _job(row.microbatches * row.microbatch_size * row.replicas, MODELS[row.model])
    nodes, pipelines = [], []
    for replica in range(row.replicas):
        stages, first = [], 0
        for stage, count in enumerate(row.layers):
            node = Node(id=f"r{replica}s{stage}", offer=offers[row.gpus[stage][replica]].id, devices=row.tp)
            nodes.append(node)
            stages.append(Stage(first_layer=first, end_layer=first + count, node=node.id, devices=tuple(range(row.tp))))
            first += count
        pipelines.append(
            Pipeline(
                id=replica,
                microbatch_size=row.microbatch_size,
                microbatches=row.microbatches,
                stages=tuple(stages),
            )
        )
    plan = Plan(zero_stage=0, precision=Precision.FP32, nodes=tuple(nodes), pipelines=tuple(pipelines))
    by_id = {offer.id: offer for offer in offers.values()}
    sizes = workload.decoder(job.model)
    layers = sum(row.layers)
    if layers != sizes.layers:
        raise ValueError(f"{row.name} splits {layers} layers, {row.model} has {sizes.layers}")
    return plan, dataclasses.replace(scenario, job=job, decoder=sizes, offers=by_id)


def with_constants(
    scenario: Scenario,
    accelerators: Iterable[str],
    *,
    pair_bytes_per_s: float,
    timing_overhead_s: float,
) -> Scenario:
    """Return the scenario with other constants of the engine, and of the software stack of some accelerators."""
    stacks = dict(scenario.profiles.stacks)
    for name in accelerators:
        stacks[name] = dataclasses.replace(
            stacks["default"],
            accelerator=name,
            timing_overhead_s=timing_overhead_s,
        )
    profiles = dataclasses.replace(scenario.profiles, stacks=stacks)
    engine = dataclasses.replace(scenario.engine, pair_bytes_per_s=pair_bytes_per_s)
    return dataclasses.replace(scenario, profiles=profiles, engine=engine)


def _row(row: dict[str, str]) -> Measured:
    gpus = []
    for stage in row["nodes_per_stage_by_gpu"].split("|"):
        replicas: list[str] = []
        for part in stage.split("+"):
            found = re.fullmatch(r"([1-9]\d{0,4})x(.+)", part.strip())
            if found is None:
                raise ValueError(f"nodes_per_stage_by_gpu is {row['nodes_per_stage_by_gpu'] or 'not stated'}")
            replicas += [our_accelerator(found[2])] * int(found[1])
        gpus.append(tuple(replicas))
    layers = tuple(_number(count, "layers_per_stage") for count in row["layers_per_stage"].split())
    if len({len(stage) for stage in gpus}) > 1 or len(layers) != len(gpus):
        raise ValueError("its stages have no layers, or not equally many nodes")
    if row["model"] not in MODELS:
        raise ValueError(f"model {row['model']} is not known; known: {', '.join(MODELS)}")
    return Measured(
        name=row["file"].rsplit("/", 1)[-1].removeprefix("plan_config_").removesuffix(".json"),
        model=row["model"],
        set_name=_SETS.get(frozenset(gpu for stage in gpus for gpu in stage), "mixed RTX"),
        gpus=tuple(gpus),
        layers=layers,
        tp=_number(row["tp"], "tp"),
        microbatch_size=_number(row["mbs"], "mbs"),
        batch=_number(row["gbs"], "gbs"),
        iteration_s=_measured(row["iteration_time_s"], "iteration_time_s"),
        peak_bytes=_measured(row["max_mem_bytes"], "max_mem_bytes") if row["max_mem_bytes"] else None,
    )


def _number(text: str, name: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text.strip()):
        raise ValueError(f"{name} is {text or 'not stated'}, not a whole number from 1 on")
    return int(text)


def _measured(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text or 'not stated'}") from None
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name} is {text}, not above 0")
    return value


def _job(batch: int, preset: str = "sailor-opt-350") -> Job:
    return Job.model_validate(
        {
            "name": "reference",
            "model": {"preset": preset},
            "training": {"global_batch_size": batch, "sequence_length": 2048, "precision": "fp32"},
            "resources": [{"provider": "gcp", "zones": [ZONE], "accelerators": {"GH-96": 1}}],
        }
    )


def _offer(accelerator: str, devices: int) -> Offer:
    """A node as it was measured; its price plays no part."""
    return Offer(
        id=accelerator,
        provider=Provider("gcp"),
        region="us-central1",
        zone=ZONE,
        instance_type=f"reference-{devices}x{accelerator}",
        accelerator=accelerator,
        accelerator_count=devices,
        vcpus=0,
        memory_gib=0.0,
        market=Market.ON_DEMAND,
        usd_per_hour=1.0,
        as_of_from=AS_OF,
        as_of_to=AS_OF,
        source="reference",
        confidence=Confidence.EXAMPLE,
        zone_confidence=ZoneConfidence.SEEN,
    )
