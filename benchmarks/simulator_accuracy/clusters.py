"""Turns published runs into plans of ours, on clusters described by what their sources say of devices and links."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from functools import cache

from published import PublishedRun, Recompute

from sailor_cloud import catalog
from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.files.offer_file import OfferBook
from sailor_cloud.catalog.prices.interruptions import InterruptionTable
from sailor_cloud.catalog.prices.services import Services
from sailor_cloud.model import plan
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Accelerator, Hardware, Provider
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.model.regions import Region, Zone
from sailor_cloud.network import Link, Network, Place, estimates
from sailor_cloud.network.egress import EgressTable
from sailor_cloud.network.estimates import ZoneInfo
from sailor_cloud.network.records import Curve, CurveScope, InstanceNetwork
from sailor_cloud.simulator import Scenario
from sailor_cloud.simulator.degrees import Degrees, NodeGroup, plan_of_degrees
from sailor_cloud.workload import ComputeProfiles
from sailor_cloud.workload.kernels import PCIE_BYTES_PER_S

ZONE, REGION, INSTANCE = "published", "published", "published"
LOCAL = Provider("local")
AS_OF = date(2026, 11, 23)
# Parts that the catalog lacks: how they differ from one that it has. A800 and H800 have fewer links (FlagPerf); the
# H100 of torchtitan has 96 GB at 2.4 TB/s and 500 of 700 W, whose root its clock follows. The last ones are as NVIDIA's
# data sheets say (2022 to 2025), without sparsity and with sums in fp32.
_VARIANTS: dict[str, tuple[str, dict[str, float]]] = {
    "A800-80": ("A100-80", {"nvlink_gb_per_s": 400.0}),
    "H800-80": ("H100-80", {"nvlink_gb_per_s": 400.0}),
    "H100-96": (
        "H100-80",
        {
            "memory_gib": 96.0,
            "memory_bandwidth_gb_per_s": 2400.0,
            "peak_tflops_bf16": 836.0,
            "peak_tflops_fp16": 836.0,
        },
    ),
    "GH200-96": ("GH-96", {}),
    "GB300-278": ("GB200-186", {"memory_gib": 278.0}),
    "H20-96": (
        "H100-80",
        {
            "memory_gib": 96.0,
            "memory_bandwidth_gb_per_s": 4000.0,
            "peak_tflops_bf16": 148.0,
            "peak_tflops_fp16": 148.0,
        },
    ),
    "RTX4090-24": (
        "L40S-48",
        {
            "memory_gib": 24.0,
            "memory_bandwidth_gb_per_s": 1008.0,
            "peak_tflops_bf16": 165.2,
            "peak_tflops_fp16": 165.2,
        },
    ),
}
# What drivers leave of the memory of cards like these: A100, H100, RTX 3090 (pricing/accelerators.csv).
USABLE_SHARE = 0.98
# Nodes of four V100 have two links per pair: Jean Zay's reach 124 GB/s of 150 over all four
# (published_collectives.csv), so their groups are those of four GH200. Sixteen have a switch (DGX-2, NVIDIA, 2018).
# Eight are a DGX-1 or a p3, as in the catalog.
_V100, _FOUR_WAY, _SWITCHED_DEVICES = "V100", "GH-96", 16
# Gbit/s of a node's network cards where the source is silent: what such nodes are sold with (bandwidth_profiles).
_NODE_GBPS = {7: 400.0, 8: 1600.0, 9: 3200.0, 10: 3200.0}
_NODE_DEVICES = 8
# Half a round trip between two devices of a node: intercepts of published_collectives.csv.
_STEP_S = 1e-6
# The playbook's cluster. From 64 nodes on every tensor between stages takes a quarter of a second, whatever its size
# and layout (45 of 46 runs of the one model that was seen there); some runs on fewer nodes show the same. No source
# explains it.
_PLAYBOOK = "HF ultrascale-playbook"
_PLAYBOOK_STALL_S, _PLAYBOOK_STALL_NODES = 0.26, 64
# There, a collective of tensor parallelism over nodes takes 65 us a step: intercepts of tp 16 and 32.
_PLAYBOOK_TENSOR_STEP_S = 6.5e-5


# Programs whose kernels are fused by hand.
_FUSED = ("llm.c", "PyTorch Lightning + Flash", "Megatron-DeepSpeed")
# What a source leaves unsaid is taken as not done.
_RECOMPUTE = {
    Recompute.NONE: plan.Recompute.NONE,
    Recompute.SELECTIVE: plan.Recompute.SELECTIVE,
    Recompute.FULL: plan.Recompute.FULL,
    Recompute.UNKNOWN: plan.Recompute.NONE,
}


def scenario_of(run: PublishedRun, profiles: ComputeProfiles) -> tuple[Plan, Scenario]:
    """Return the plan of a published run and its cluster. Raises SailorError where it can't be described."""
    real = min(run.devices_per_node or _NODE_DEVICES, run.devices)
    # A stage that spans nodes stands on a node as large, whose devices are linked by the network.
    per_node = max(real, run.tp)
    part = _as_linked(accelerator(run.accelerator), run.devices_per_node or _NODE_DEVICES)
    rate = _node_bytes_per_s(run, part)
    if run.tp > real:
        part = dataclasses.replace(part, nvlink_gb_per_s=2.0 * rate / 1e9, node_links=())
        rate *= per_node / real
    whole, rest = divmod(run.devices, per_node)
    groups = [NodeGroup(count=whole, hardware=_hardware(part.name, per_node))]
    if rest:
        groups.append(NodeGroup(count=1, hardware=_hardware(part.name, rest)))
    stages = run.engine.zero_stages if run.pp == 1 else run.engine.pipelined_zero_stages
    playbook = run.source.startswith(_PLAYBOOK)
    stalls = playbook and run.devices >= _PLAYBOOK_STALL_NODES * real
    fused = run.engine.fused or bool(run.compiled) or run.framework.startswith(_FUSED)
    scenario = Scenario(
        job=_job(run),
        decoder=run.decoder,
        offers={},
        unpriced={group.hardware.id: group.hardware for group in groups},
        catalog=_catalog(part),
        network=_network(part, rate, per_node),
        profiles=profiles,
        as_of=datetime(AS_OF.year, AS_OF.month, AS_OF.day, tzinfo=UTC),
        engine=dataclasses.replace(
            run.engine,
            fused=fused,
            recompute=tuple(plan.Recompute),
            message_s=_PLAYBOOK_STALL_S if stalls else run.engine.message_s,
            collective_s=(
                2.0 * (run.tp - 1) * _PLAYBOOK_TENSOR_STEP_S if playbook and run.tp > real else run.engine.collective_s
            ),
        ),
    )
    degrees = Degrees(
        tp=run.tp,
        pp=run.pp,
        dp=run.dp,
        microbatch_size=run.microbatch_size,
        # ZeRO-2 takes the time of ZeRO-1.
        zero_stage=max(stage for stage in stages if stage <= run.zero_stage),
        recompute=_RECOMPUTE[run.recompute],
        schedule=PipelineSchedule.INTERLEAVED if run.virtual_stages > 1 else PipelineSchedule.ONE_F_ONE_B,
        chunks=run.virtual_stages,
    )
    return plan_of_degrees(degrees, groups, scenario), scenario


@cache
def accelerator(name: str) -> Accelerator:
    """Return a part of the catalog, or one that it lacks. Raises DataError for others."""
    like, changes = _VARIANTS.get(name, (name, {}))
    known = _shipped()
    part = dataclasses.replace(known.accelerator(like), name=name, **changes)  # type: ignore[arg-type]
    if "memory_gib" not in changes:
        return part
    return dataclasses.replace(part, usable_memory_gib=part.memory_gib * USABLE_SHARE)


@cache
def _shipped() -> Catalog:
    return catalog.load()


def _as_linked(part: Accelerator, devices: int) -> Accelerator:
    """Return a part with the links of its devices in nodes of so many."""
    if not part.name.startswith(_V100):
        return part
    if devices >= _SWITCHED_DEVICES:
        return dataclasses.replace(part, node_links=())
    return dataclasses.replace(part, node_links=accelerator(_FOUR_WAY).node_links) if devices == 4 else part


def _node_bytes_per_s(run: PublishedRun, part: Accelerator) -> float:
    gbps = run.internode_gbps or _NODE_GBPS[int(part.compute_capability or 8)]
    return estimates.INSTANCE_SHARE * gbps * 1e9 / 8.0


@cache
def _catalog(part: Accelerator) -> Catalog:
    region = Region(
        provider=LOCAL,
        name=REGION,
        location="",
        continent="",
        latitude=None,
        longitude=None,
        grid_gco2_per_kwh=None,
        carbon_free_fraction=None,
        source="",
    )
    return Catalog(
        offers=OfferBook.of([]),
        accelerators=[part],
        zones=[Zone(provider=LOCAL, region=REGION, name=ZONE)],
        regions=[region],
        services=Services([]),
        interruptions=InterruptionTable([]),
        sources=[],
        recorded=list,
    )


class _Network(Network):
    """A cluster whose links follow from data sheets: as uncertain as such estimates are."""

    def link(self, src: Place, dst: Place, *, pairs: int = 1, flows: int = 1) -> Link:
        same_node = src.node is not None and src.node == dst.node
        error = estimates.DEVICE_LINK_ERROR if same_node else estimates.INSTANCE_ERROR
        return estimates.estimated(super().link(src, dst, pairs=pairs, flows=flows), error=error)


@cache
def _network(part: Accelerator, node_bytes_per_s: float, per_node: int) -> Network:
    """Return the links between devices of a node and between nodes, where each device has a card of its own."""
    nvlink = part.nvlink_gb_per_s
    device = (nvlink * 1e9 / 2.0 if nvlink else PCIE_BYTES_PER_S[part.pcie_generation or 3]) * (
        estimates.DEVICE_LINK_SHARE
    )
    curves = []
    for pairs in range(1, per_node + 1):
        shared = node_bytes_per_s * pairs / per_node
        curves.append(_curve(CurveScope.SAME_NODE, part, pairs, device * pairs, _STEP_S))
        curves.append(_curve(CurveScope.SAME_ZONE, part, pairs, shared, estimates.RING_STEP_S))
    zone = ZoneInfo(name=ZONE, provider=LOCAL, region=REGION, egress_group="", latitude=None, longitude=None)
    instance = InstanceNetwork(
        provider=LOCAL,
        instance_type=INSTANCE,
        accelerator=part.name,
        accelerator_count=per_node,
        baseline_bytes_per_s=node_bytes_per_s,
        device_link="",
        device_link_bytes_per_s=None,
        source="published",
    )
    return _Network(zones=[zone], curves=curves, instances=[instance], region_pairs={}, egress=EgressTable({}))


def _curve(scope: CurveScope, part: Accelerator, pairs: int, bytes_per_s: float, step_s: float) -> Curve:
    return Curve(
        scope=scope,
        src_zone="",
        src_accelerator=part.name,
        dst_zone="",
        dst_accelerator=part.name,
        pairs=pairs,
        a=0.0,
        b=0.0,
        c=bytes_per_s / 1e9,
        min_bytes=1.0,
        max_bytes=1e12,
        max_bytes_per_s=bytes_per_s,
        rtt_ms=2e3 * step_s,
        measured=scope is CurveScope.SAME_ZONE,
        source="published",
        as_of=AS_OF,
    )


def _job(run: PublishedRun) -> Job:
    return Job.model_validate(
        {
            "name": "published",
            "model": {"preset": "sailor-opt-350"},
            "training": {
                "global_batch_size": run.dp * run.microbatch_size * run.microbatches,
                "sequence_length": run.sequence_length,
                "precision": run.precision.value,
            },
            "resources": [{"provider": "local", "zones": [ZONE], "accelerators": {run.accelerator: run.devices}}],
        }
    )


@cache
def _hardware(accelerator: str, devices: int) -> Hardware:
    return Hardware(
        id=f"published-{devices}",
        provider=LOCAL,
        region=REGION,
        zone=ZONE,
        instance_type=INSTANCE,
        accelerator=accelerator,
        accelerator_count=devices,
    )
