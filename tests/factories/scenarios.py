"""Plans and scenarios for tests, on the data that comes with the program."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sailor_cloud import catalog, network, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.network import Network
from sailor_cloud.simulator import Engine, Scenario
from sailor_cloud.workload import ComputeProfiles, profiles

AS_OF = datetime(2026, 11, 21, tzinfo=UTC)

LOCAL = {"provider": "local", "zones": ["local-a", "local-b"], "accelerators": {"CPU-fast": 1, "CPU-slow": 1}}
GCP = {
    "provider": "gcp",
    "zones": ["us-central1-a", "us-central1-b", "us-west1-b"],
    "markets": ["spot", "on-demand"],
    "accelerators": {"A100-40": 64, "V100-16": 64},
}
TINY = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@cache
def _catalog() -> Catalog:
    return catalog.load()


@cache
def _network() -> Network:
    return network.load()


@cache
def _profiles() -> ComputeProfiles:
    return profiles.load()


def make_job(
    *,
    model: dict[str, Any] | None = None,
    resources: Sequence[dict[str, Any]] = (LOCAL,),
    batch: int = 24,
    sequence_length: int = 128,
    steps: int | None = 100,
    **training: Any,
) -> Job:
    return Job.model_validate(
        {
            "name": "test",
            "model": model or TINY,
            "training": {
                "global_batch_size": batch,
                "sequence_length": sequence_length,
                "steps": steps,
                **training,
            },
            "resources": list(resources),
        }
    )


def make_scenario(job: Job, *, engine: Engine | None = None) -> Scenario:
    """The job with every offer of its resources."""
    offers: dict[str, Offer] = {}
    for resource in job.resources:
        for offer in _catalog().offers(
            provider=resource.provider, zones=resource.zones, accelerators=resource.accelerators
        ):
            offers[offer.id] = offer
    return Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers=offers,
        catalog=_catalog(),
        network=_network(),
        profiles=_profiles(),
        as_of=AS_OF,
        engine=engine or Engine(),
    )


def gcp_scenario(
    *, preset: str = "sailor-opt-350", batch: int = 64, engine: Engine | None = None, **training: Any
) -> Scenario:
    settings: dict[str, Any] = {"sequence_length": 2048, "precision": "fp16", **training}
    job = make_job(model={"preset": preset}, resources=[GCP], batch=batch, **settings)
    return make_scenario(job, engine=engine)


def offer_in(
    scenario: Scenario, zone: str, accelerator: str, *, devices: int = 1, market: Market = Market.ON_DEMAND
) -> Offer:
    """The cheapest matching offer of a scenario."""
    found = [
        offer
        for offer in scenario.offers.values()
        if (offer.zone, offer.accelerator, offer.accelerator_count, offer.market)
        == (zone, accelerator, devices, market)
    ]
    return min(found, key=lambda offer: (offer.usd_per_hour, offer.id))


def chain(
    pipeline: int, offers: Sequence[Offer], cuts: Sequence[int], *, microbatch_size: int, microbatches: int
) -> tuple[tuple[Node, ...], Pipeline]:
    """A pipeline with one node per stage, all of its devices used; `cuts` starts with 0 and ends with the layers."""
    nodes = tuple(
        Node(id=f"p{pipeline}-s{stage}", offer=offer.id, devices=offer.accelerator_count)
        for stage, offer in enumerate(offers)
    )
    stages = tuple(
        Stage(first_layer=first, end_layer=end, node=node.id, devices=tuple(range(node.devices)))
        for node, first, end in zip(nodes, cuts[:-1], cuts[1:], strict=True)
    )
    return nodes, Pipeline(id=pipeline, microbatch_size=microbatch_size, microbatches=microbatches, stages=stages)


def make_plan(scenario: Scenario, chains: Sequence[tuple[tuple[Node, ...], Pipeline]], *, zero_stage: int = 0) -> Plan:
    return Plan(
        zero_stage=zero_stage,
        precision=scenario.job.training.precision,
        nodes=tuple(node for nodes, _ in chains for node in nodes),
        pipelines=tuple(pipeline for _, pipeline in chains),
    )


def two_stage_plan(scenario: Scenario, cut: int = 6) -> Plan:
    """The local job cut in two: CPU-fast in local-a, CPU-slow in local-b."""
    offers = [offer_in(scenario, "local-a", "CPU-fast"), offer_in(scenario, "local-b", "CPU-slow")]
    layers = scenario.decoder.layers
    batch = scenario.job.training.global_batch_size
    return make_plan(scenario, [chain(0, offers, (0, cut, layers), microbatch_size=2, microbatches=batch // 2)])
