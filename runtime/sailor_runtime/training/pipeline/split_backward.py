"""A layer's backward pass in two halves: the gradient of its input first, those of its weights when there is time.

torch.distributed.pipelining halves the pass of a stage in the same way, by functions that are not public.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

# From a node on the way to the input: its outputs to parameters.
_Branches = dict[Node, list[GradientEdge]]


class DeferredWeights:
    """The weights' half of a backward pass: its nodes, with the gradients that reached them."""

    def __init__(self, branches: _Branches) -> None:
        self._branches = branches
        self._reached: dict[Node, tuple[Tensor | None, ...]] = {}

    def hook(self, node: Node) -> Callable[[tuple[Tensor, ...]], None]:
        def note(gradients: tuple[Tensor, ...]) -> None:
            self._reached[node] = gradients

        return note

    def run(self, repeats: int = 1) -> None:
        """Add the gradients to the parameters; `repeats`: how often to compute them."""
        edges: list[GradientEdge] = []
        found: list[Tensor] = []
        for node, branches in self._branches.items():
            given = [(GradientEdge(node, i), each) for i, each in enumerate(self._reached[node]) if each is not None]
            if not given:
                continue
            roots, gradients = zip(*given, strict=True)
            for run in range(repeats):
                parts = torch.autograd.grad(
                    roots, branches, gradients, retain_graph=run < repeats - 1, allow_unused=True
                )
            for edge, part in zip(branches, parts, strict=True):
                if part is not None:
                    edges.append(edge)
                    found.append(part)
        if edges:
            torch.autograd.backward(edges, found)
        self._branches, self._reached = {}, {}


def input_gradient(
    output: Tensor, value: Tensor, gradient: Tensor | None, repeats: int = 1
) -> tuple[Tensor | None, DeferredWeights | None]:
    """Return the gradient of a layer's input and the remaining half, None if no weight is trained.

    Until that has run, the whole graph of the layer is kept. `gradient`: of the output, None for a loss. `repeats`: how
    often to compute it. If several nodes share an output to a parameter, nothing remains: both halves run together.
    """
    if not output.requires_grad:
        return None, None
    branches = _branches(output, value)
    if branches is None:
        for _ in range(repeats - 1):
            torch.autograd.grad(output, value, gradient, retain_graph=True)
        output.backward(gradient)
        return value.grad, None
    left = DeferredWeights(branches)
    for run in range(repeats):
        last = run == repeats - 1
        handles = [node.register_prehook(left.hook(node)) for node in branches] if last else []
        [result] = torch.autograd.grad(output, value, gradient, retain_graph=bool(branches) or not last)
        for handle in handles:
            handle.remove()
    return result, left if branches else None


def _branches(output: Tensor, value: Tensor) -> _Branches | None:
    """Return where parameters join the way from a layer's input to its output; None if it can't be halved."""
    target = get_gradient_edge(value).node
    root = get_gradient_edge(output).node
    leads = {target: True}
    order: list[Node] = []
    stack = [(root, False)]
    while stack:
        node, seen = stack.pop()
        children = [child for child, _ in node.next_functions if child is not None]
        if seen:
            leads[node] = any(leads[child] for child in children)
            order.append(node)
        elif node not in leads:
            leads[node] = False
            stack.append((node, True))
            stack.extend((child, False) for child in children if child not in leads)
    if not leads[root]:
        return None
    found: _Branches = {}
    taken: set[GradientEdge] = set()
    # From the output on, like a whole backward pass; all ranks of a stage do it in the same order.
    for node in reversed(order):
        if not leads[node]:
            continue
        edges = [GradientEdge(child, i) for child, i in node.next_functions if child is not None and not leads[child]]
        if len(set(edges)) < len(edges) or not taken.isdisjoint(edges):
            return None
        if edges:
            found[node] = edges
            taken.update(edges)
    return found
