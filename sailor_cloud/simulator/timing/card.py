"""Transfers that share the network card of a node.

A card is full duplex. Transfers that may run at the same time count as simultaneous: equal parallel pipelines do send
their tensors together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)
Stage = TypeVar("Stage", bound=Hashable)


def cut_flows(pipelines: Sequence[Sequence[Node]], *, around: bool = False) -> tuple[tuple[int, ...], ...]:
    """Return, per pipeline and cut, how many tensors share the busier of its two cards in one direction.

    pipelines: the node of every stage. Gradients travel in the opposite direction of activations, so the number applies
    to both. It is 1 if both stages are on one node. `around`: after the last node of a pipeline comes its first one
    again. Then gradients of one cut share a card with activations of another during the whole iteration.
    """
    leaving: Counter[Node] = Counter()
    arriving: Counter[Node] = Counter()
    returning: Counter[tuple[Node, Node]] = Counter()
    for nodes in pipelines:
        for src, dst in pairwise(nodes):
            if src != dst:
                leaving[src] += 1
                arriving[dst] += 1
                returning[dst, src] += around
    return tuple(
        tuple(
            1 if src == dst else max(leaving[src], arriving[dst]) + returning[src, dst] for src, dst in pairwise(nodes)
        )
        for nodes in pipelines
    )


def ring_flows(rings: Sequence[Sequence[tuple[Stage, Node]]]) -> list[dict[Node, int]]:
    """Return, per ring and node of it, how many simultaneous rings share the node's card.

    rings: the members of every sum and their nodes. A stage takes part in one sum at a time. Stages of a node with the
    same sums take part together; each other kind of stage on the node adds one ring. Rings inside one node use no card.
    """
    taken: dict[tuple[Stage, Node], dict[int, None]] = {}
    for number, ring in enumerate(rings):
        if len({node for _, node in ring}) > 1:
            for member in ring:
                taken.setdefault(member, {})[number] = None
    kinds: dict[Node, set[tuple[int, ...]]] = {}
    for (_, node), numbers in taken.items():
        kinds.setdefault(node, set()).add(tuple(numbers))
    # How many kinds of stages of a node take part in each ring.
    parts = {node: Counter(number for kind in there for number in kind) for node, there in kinds.items()}
    return [
        {node: 1 + len(kinds[node]) - parts[node][number] if node in kinds else 1 for _, node in ring}
        for number, ring in enumerate(rings)
    ]


def hop_pairs(tp: int, src: Node, dst: Node, members: Mapping[Node, int]) -> int:
    """Return the number of device pairs that a ring uses from one node to another, or inside one.

    members: how many stages of `tp` devices take part on each node. As in NCCL's rings, each of them is an exit of the
    node.
    """
    return tp * min(members[src], members[dst]) if src != dst else tp
