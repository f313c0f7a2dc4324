"""Short ways to write plans."""

from __future__ import annotations

from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Node, Pipeline, Plan, Recompute, Stage


def node(name: str, *, offer: str = "offer", devices: int = 1) -> Node:
    return Node(id=name, offer=offer, devices=devices)


def stage(
    first: int, end: int, node_name: str, devices: tuple[int, ...] = (0,), *, recompute: Recompute = Recompute.NONE
) -> Stage:
    return Stage(first_layer=first, end_layer=end, node=node_name, devices=devices, recompute=recompute)


def pipeline(number: int, stages: tuple[Stage, ...], *, microbatch_size: int = 1, microbatches: int = 1) -> Pipeline:
    return Pipeline(id=number, microbatch_size=microbatch_size, microbatches=microbatches, stages=stages)


def plan(
    *,
    nodes: tuple[Node, ...],
    pipelines: tuple[Pipeline, ...],
    zero_stage: int = 0,
    precision: Precision = Precision.FP32,
) -> Plan:
    return Plan(zero_stage=zero_stage, precision=precision, nodes=nodes, pipelines=pipelines)
