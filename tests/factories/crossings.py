"""A small job on two zones of a cloud, as a fixed plan of an A100 and a V100, and what its training comes to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from factories.nodes import local_node
from sailor_cloud import api, catalog, network, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.launch.fleet.run_spec import build_spec
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.simulator.resimulate import simulate_document

JOB = """
name: crossing
model: {{model_type: gpt2, vocab_size: 256, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4,
        max_position_embeddings: 64}}
training: {{global_batch_size: 16, sequence_length: 64, steps: {steps}, precision: fp32, learning_rate: 1.0e-3}}
constraints: {{budget_usd: 60, deadline: 2h}}
resources:
  - {{provider: {provider}, zones: [{zones}], markets: [spot], accelerators: {accelerators}, instance_types: [{types}]}}
cloud: {cloud}
checkpoint: {{every: 1s, keep: 2, to: {checkpoints}}}
"""
ZONES = {Provider("gcp"): ("us-central1-a", "us-central1-b"), Provider("aws"): ("use1-az1", "use1-az2")}
TYPES = {Provider("gcp"): ("a2-highgpu-1g", "n1-standard-8"), Provider("aws"): ("p4d.24xlarge", "p3.2xlarge")}
_DEVICES = {Provider("gcp"): "{A100-40: 1, V100-16: 1}", Provider("aws"): "{A100-40: 8, V100-16: 1}"}


def write_crossing(folder: Path, provider: Provider, *, steps: int, project: str, image: str) -> tuple[Path, Path]:
    """Write job and plan: the A100 of the first zone and the V100 of the second, half of each batch on either."""
    cloud = f"{{gcp: {{project: {project}}}, owner: me@example.org}}"
    if provider is Provider("aws"):
        # Without public addresses, so that one of the two clouds is worked on through tunnels alone.
        cloud = f"{{owner: me@example.org, image: {image}, network: private}}"
    text = JOB.format(
        steps=steps,
        provider=provider,
        zones=", ".join(ZONES[provider]),
        accelerators=_DEVICES[provider],
        types=", ".join(TYPES[provider]),
        cloud=cloud,
        checkpoints=folder / "checkpoints",
    )
    job_file, plan_file = folder / "crossing.yaml", folder / "plan.json"
    job_file.write_text(text)
    (folder / "checkpoints").mkdir()
    plan_file.write_text(crossing(parse_job(text), provider).to_json())
    return job_file, plan_file


def crossing(job: Job, provider: Provider) -> PlanDocument:
    prices = catalog.load()
    first, second = ZONES[provider]
    large, small = TYPES[provider]
    offers = {"a100": spot_offer(prices, first, large, "A100-40"), "v100": spot_offer(prices, second, small, "V100-16")}
    return one_pipeline_each(job, prices, offers)


def one_pipeline_each(job: Job, prices: Catalog, offers: Mapping[str, Offer]) -> PlanDocument:
    """A plan with a pipeline on one device of each node, by the nodes' names: two microbatches of four samples."""
    plan = Plan(
        zero_stage=0,
        precision=job.training.precision,
        nodes=tuple(Node(id=name, offer=offer.id, devices=offer.accelerator_count) for name, offer in offers.items()),
        pipelines=tuple(
            Pipeline(
                id=index,
                microbatch_size=4,
                microbatches=2,
                stages=(Stage(first_layer=0, end_layer=6, node=name, devices=(0,)),),
            )
            for index, name in enumerate(offers)
        ),
    )
    found = api.plan(job)
    return simulate_document(
        replace(found, plan=plan, inputs=replace(found.inputs, offers=tuple(offers.values()))),
        catalog=prices,
        network=network.load(),
        profiles=workload.profiles.load(),
        decoder=workload.decoder(job.model),
        as_of=found.as_of,
    ).document


def undisturbed_losses(folder: Path, document: PlanDocument) -> dict[int, float]:
    """Train the job of a plan on one processor thread, in one process that nothing disturbs; return the losses."""
    folder.mkdir()
    assert document.plan is not None
    # Saving is not what is compared, and every second of it costs as much as the training.
    seldom = document.job.checkpoint.model_copy(update={"every": 3600.0})
    document = replace(document, job=document.job.model_copy(update={"checkpoint": seldom}))
    whole = Stage(first_layer=0, end_layer=6, node="alone", devices=(0,))
    alone = replace(
        document.plan,
        nodes=(Node(id="alone", offer=document.plan.nodes[0].offer, devices=1),),
        pipelines=(Pipeline(id=0, microbatch_size=8, microbatches=2, stages=(whole,)),),
    )
    spec = build_spec(
        replace(document, plan=alone),
        workload.decoder(document.job.model),
        {"alone": local_node("alone")},
        run_id="undisturbed",
        generation=1,
        master_port=0,
        checkpoint_directory=str(folder / "checkpoints"),
        expires_at=datetime(2100, 1, 1, tzinfo=UTC),
        check=False,
    )
    (folder / "spec.json").write_text(spec.to_json())
    options = ["--spec", "spec.json", "--rank", "0", "--events", "events.jsonl", "--home", str(folder)]
    command = [sys.executable, "-m", "sailor_runtime.training", *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=500)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def spot_offer(prices: Catalog, zone: str, instance_type: str, accelerator: str) -> Offer:
    found = prices.offers(
        zones=(zone,), instance_types=(instance_type,), accelerators=(accelerator,), markets=("spot",)
    )  # type: ignore[arg-type]
    return min(found, key=lambda offer: offer.accelerator_count)
