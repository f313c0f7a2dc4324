"""Every plan of a tiny problem, made without any code of the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations, product

from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.simulator import Scenario, evaluate


def every_plan(scenario: Scenario) -> Iterator[Plan]:
    """Yield every plan on one-device nodes of the job's single entry: nodes, order, cuts, batch split, sizes."""
    job = scenario.job
    (entry,) = job.resources
    layers, batch = scenario.decoder.layers, job.training.global_batch_size
    offers = [
        offer
        for offer in sorted(scenario.offers.values(), key=lambda offer: offer.id)
        for _ in range(entry.accelerators[offer.accelerator])
    ]
    most = min(len(offers), job.constraints.max_nodes or len(offers))
    seen = set()
    for count in range(1, most + 1):
        for chosen in combinations(offers, count):
            for order in permutations(chosen):
                for sizes in compositions(count):
                    chains = sorted(_split(order, sizes), key=lambda chain: [offer.id for offer in chain])
                    key = tuple(tuple(offer.id for offer in chain) for chain in chains)
                    if key in seen or any(len(chain) > layers for chain in chains) or len(chains) > batch:
                        continue
                    seen.add(key)
                    yield from _plans_on(scenario, chains, layers, batch)


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as an ordered sum of positive ones."""
    for cuts in range(total):
        for inner in combinations(range(1, total), cuts):
            edges = (0, *inner, total)
            yield tuple(b - a for a, b in pairwise(edges))


def _split(order: tuple[Offer, ...], sizes: tuple[int, ...]) -> list[tuple[Offer, ...]]:
    chains, start = [], 0
    for size in sizes:
        chains.append(order[start : start + size])
        start += size
    return chains


def _plans_on(scenario: Scenario, chains: list[tuple[Offer, ...]], layers: int, batch: int) -> Iterator[Plan]:
    cuts = [[(0, *inner, layers) for inner in combinations(range(1, layers), len(chain) - 1)] for chain in chains]
    for samples in compositions(batch):
        if len(samples) != len(chains):
            continue
        sizes = [[size for size in range(1, part + 1) if part % size == 0] for part in samples]
        for chosen_cuts in product(*cuts):
            for chosen_sizes in product(*sizes):
                # With ZeRO-1 several pipelines share out the optimizer step.
                for zero_stage in range(min(2, len(chains))):
                    yield _plan(scenario, chains, chosen_cuts, samples, chosen_sizes, zero_stage)


def _plan(
    scenario: Scenario,
    chains: list[tuple[Offer, ...]],
    cuts: tuple[tuple[int, ...], ...],
    samples: tuple[int, ...],
    sizes: tuple[int, ...],
    zero_stage: int,
) -> Plan:
    nodes: list[Node] = []
    numbers: Counter[str] = Counter()
    pipelines = []
    for p, (chain, cut, part, size) in enumerate(zip(chains, cuts, samples, sizes, strict=True)):
        stages = []
        for offer, first, end in zip(chain, cut[:-1], cut[1:], strict=True):
            node = Node(id=f"{offer.id}#{numbers[offer.id]}", offer=offer.id, devices=1)
            numbers[offer.id] += 1
            nodes.append(node)
            stages.append(Stage(first_layer=first, end_layer=end, node=node.id, devices=(0,)))
        pipelines.append(Pipeline(id=p, microbatch_size=size, microbatches=part // size, stages=tuple(stages)))
    return Plan(
        zero_stage=zero_stage,
        precision=scenario.job.training.precision,
        nodes=tuple(nodes),
        pipelines=tuple(pipelines),
    )


def figures(scenario: Scenario) -> list[tuple[float, float, float]]:
    """Return iteration seconds under the replay, USD per hour of nodes, and egress USD per iteration.

    One row for every plan that fits in memory.
    """
    found = []
    for plan in every_plan(scenario):
        evaluation = evaluate(plan, scenario)
        if evaluation.fits:
            rate = sum(scenario.offers[node.offer].usd_per_hour for node in plan.nodes)
            egress = sum(link.bytes_per_iteration * link.usd_per_gb / 1e9 for link in evaluation.links)
            found.append((evaluation.prediction.iteration_s_replay, rate, egress))
    return found
