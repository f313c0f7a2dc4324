"""What the nodes of a new plan are called: survivors keep their names, and a name never stands for two nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count

from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Node, Plan


def fresh_names(plan: Plan, survivors: Sequence[Node], taken: Collection[str], offers: Mapping[str, Offer]) -> Plan:
    """Return the plan with the survivors' names on nodes of equal offers, and unused names on the others."""
    free = Counter(node.offer for node in survivors)
    names: dict[str, str] = {}
    used = set(taken) | {node.id for node in survivors}
    by_offer: dict[str, list[str]] = {}
    for node in survivors:
        by_offer.setdefault(node.offer, []).append(node.id)
    for node in plan.nodes:
        if free[node.offer]:
            free[node.offer] -= 1
            names[node.id] = by_offer[node.offer].pop(0)
            continue
        offer = offers[node.offer]
        stem = f"{offer.zone}-{offer.accelerator.lower()}"
        names[node.id] = next(name for number in count() if (name := f"{stem}-{number}") not in used)
        used.add(names[node.id])
    return renamed(plan, names)


def renamed(plan: Plan, names: Mapping[str, str]) -> Plan:
    return replace(
        plan,
        nodes=tuple(replace(node, id=names[node.id]) for node in plan.nodes),
        pipelines=tuple(
            replace(pipeline, stages=tuple(replace(stage, node=names[stage.node]) for stage in pipeline.stages))
            for pipeline in plan.pipelines
        ),
    )


def same_shape(a: Plan, b: Plan) -> bool:
    """Whether two plans compute the same way, whatever their nodes are called."""

    def shape(plan: Plan) -> object:
        offers = {node.id: node.offer for node in plan.nodes}
        return [
            (
                pipeline.microbatch_size,
                pipeline.microbatches,
                [(s.first_layer, s.end_layer, offers[s.node], s.devices, s.recompute) for s in pipeline.stages],
            )
            for pipeline in plan.pipelines
        ]

    return a.zero_stage == b.zero_stage and a.precision == b.precision and shape(a) == shape(b)
