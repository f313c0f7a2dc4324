"""Attacks the planner with a search that shares no code with it: can random moves beat a plan under its own simulator?

Usage: python benchmarks/planner/attack.py [--cases 50] [--seconds 60] [--seed 1] [-o FILE]. Each case is a random job
(accelerators, uneven counts, odd batches, tied and untied models, goals, budgets). Simulated annealing begins at the
chosen plan and has so many CPU seconds. It moves layers, stages, devices, samples, pipelines and nodes at random, one
or all equal ones at a time, and judges every plan by `simulator.evaluate`. `--job FILE` attacks the plan of one job
instead. Prints by how much each plan was beaten in the figure that its report shows.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api, catalog, network, workload
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import SailorError
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.plan import Node, Pipeline, Plan, Recompute, Stage
from sailor_cloud.planner.search import problem_of
from sailor_cloud.simulator import Scenario, evaluate

ROOT = Path(__file__).parents[2]
AS_OF = datetime(2026, 11, 21, tzinfo=UTC)
BEATEN = 0.005
# Models with their sequence lengths; those of OPT and GPT-2 tie the embedding to the head.
MODELS = {
    "gpt2": 1024,
    "gpt2-medium": 1024,
    "sailor-opt-350": 2048,
    "opt-1.3b": 1024,
    "gpt-neo-2.7b": 2048,
}
ACCELERATORS = ("A100-40", "A100-80", "V100-16", "T4-16", "L4-24", "P100-16")
KINDS = (
    *("layers", "layers", "swap", "reverse", "merge", "split", "degree", "size", "size"),
    *("samples", "away", "another", "drop", "offer", "zero"),
)
ZONES = ("us-central1-a", "us-central1-b", "us-west1-b", "europe-west4-a")


@dataclass(slots=True)
class Part:
    """A stage of the attacker: the node it is on, its devices and its layers."""

    node: int
    tp: int
    layers: int
    again: Recompute = Recompute.NONE


@dataclass(slots=True)
class Line:
    """A pipeline of the attacker: `samples` of the batch in microbatches of `size`."""

    parts: list[Part]
    size: int
    samples: int

    def copy(self) -> Line:
        return Line([replace(part) for part in self.parts], self.size, self.samples)

    def like(self, other: Line, offers: list[str]) -> bool:
        mine, theirs = ([(offers[p.node], p.tp, p.layers) for p in line.parts] for line in (self, other))
        return mine == theirs and self.size == other.size


@dataclass(slots=True)
class State:
    offers: list[str]
    lines: list[Line]
    zero: int = 0

    def copy(self) -> State:
        return State(list(self.offers), [line.copy() for line in self.lines], self.zero)


@dataclass(slots=True)
class Attack:
    """One job under attack."""

    job: Job
    scenario: Scenario
    devices: dict[str, int]
    row_of: dict[str, int]
    rows: list[int]
    dice: random.Random
    evaluated: int = 0
    moves: Counter[str] = field(default_factory=Counter)

    def value(self, state: State) -> float:
        """Return what the goal's figure is of a plan that keeps all limits, else infinity."""
        plan = self.plan(state)
        if plan is None:
            return math.inf
        self.evaluated += 1
        try:
            found = evaluate(plan, self.scenario)
        except SailorError:
            return math.inf
        if not found.fits:
            too_much = {(m.pipeline, m.stage) for m in found.prediction.memory if m.total_bytes > m.limit_bytes}
            for number, stage in too_much:
                part = state.lines[number].parts[stage]
                if part.again is Recompute.FULL:
                    return math.inf
                part.again = Recompute.SELECTIVE if part.again is Recompute.NONE else Recompute.FULL
            return self.value(state)
        limits, cost, seconds = self.job.constraints, found.cost, found.prediction.iteration_s_replay
        spent = cost.total_usd if cost.total_usd is not None else 0.0
        broken = (
            (limits.budget_usd is not None and spent > limits.budget_usd)
            or (limits.max_usd_per_hour is not None and cost.usd_per_hour > limits.max_usd_per_hour)
            or (limits.deadline is not None and (found.prediction.duration_s or 0.0) > limits.deadline)
        )
        if broken:
            return math.inf
        return (cost.total_usd or cost.usd_per_iteration) if self.job.goal is Goal.MINIMIZE_COST else seconds

    def plan(self, state: State) -> Plan | None:
        """Return the plan of a state, None where it is none."""
        used = sorted({part.node for line in state.lines for part in line.parts})
        bought: Counter[int] = Counter()
        for node in used:
            bought[self.row_of[state.offers[node]]] += self.devices[state.offers[node]]
        if any(devices > self.rows[row] for row, devices in bought.items()):
            return None
        most = self.job.constraints.max_nodes
        taken: Counter[int] = Counter()
        pipelines = []
        for number, line in enumerate(state.lines):
            if line.samples < 1 or line.samples % line.size or any(part.layers < 1 for part in line.parts):
                return None
            first, stages = 0, []
            for part in line.parts:
                begin = taken[part.node]
                taken[part.node] += part.tp
                if part.tp < 1 or taken[part.node] > self.devices[state.offers[part.node]]:
                    return None
                stages.append(
                    Stage(
                        first_layer=first,
                        end_layer=first + part.layers,
                        node=f"n{part.node}",
                        devices=tuple(range(begin, begin + part.tp)),
                        recompute=part.again,
                    )
                )
                first += part.layers
            pipelines.append(
                Pipeline(
                    id=number,
                    microbatch_size=line.size,
                    microbatches=line.samples // line.size,
                    stages=tuple(stages),
                )
            )
        if not pipelines or (most is not None and len(used) > most):
            return None
        nodes = tuple(
            Node(id=f"n{node}", offer=state.offers[node], devices=self.devices[state.offers[node]]) for node in used
        )
        precision = self.job.training.precision
        return Plan(zero_stage=state.zero, precision=precision, nodes=nodes, pipelines=tuple(pipelines))

    def run(self, start: State, seconds: float) -> float:
        """Return the least value that annealing finds in so many CPU seconds."""
        current, reached = start, self.value(start)
        best, begun = reached, time.process_time()
        at = start
        while (gone := (time.process_time() - begun) / seconds) < 1.0:
            state = current.copy()
            for line in state.lines:
                for part in line.parts:
                    part.again = Recompute.NONE
            names = [self.change(state) for _ in range(self.dice.choice((1, 1, 1, 2, 3)))]
            value = self.value(state)
            heat = 0.03 * (1.0 - gone)
            if value < reached * (1.0 + heat * self.dice.random()):
                if value < best * (1.0 - 1e-9):
                    best, at = value, state
                    self.moves.update(names)
                current, reached = state, value
            elif self.dice.random() < 0.003:
                current, reached = at, best
        return best

    def change(self, state: State) -> str:
        """Change a state at random, one pipeline or all equal ones."""
        dice, line = self.dice, self.dice.choice(state.lines)
        alike = [other for other in state.lines if other.like(line, state.offers)] if dice.random() < 0.75 else [line]
        at, other = dice.randrange(len(line.parts)), dice.randrange(len(line.parts))
        kind = dice.choice(KINDS)
        pick = dice.randrange(1 << 30)
        for each in alike:
            parts = each.parts
            part = parts[at]
            match kind:
                case "layers":
                    part.layers, parts[other].layers = part.layers - 1, parts[other].layers + 1
                case "swap":
                    part.node, parts[other].node = parts[other].node, part.node
                    part.tp, parts[other].tp = parts[other].tp, part.tp
                    if pick & 1:
                        part.layers, parts[other].layers = parts[other].layers, part.layers
                case "reverse":
                    parts.insert(other, parts.pop(at))
                case "merge" if len(parts) > 1:
                    gone = parts.pop(at)
                    near = parts[max(0, at - 1)]
                    near.layers += gone.layers
                    if pick & 1 and near.node == gone.node:
                        near.tp += gone.tp
                case "split" if part.layers > 1:
                    less = part.layers // 2
                    tp = part.tp // 2 if part.tp > 1 and pick & 1 else part.tp
                    part.layers, part.tp = part.layers - less, tp
                    node = part.node if pick & 2 or tp < part.tp else self.new_node(state, pick)
                    parts.insert(at + 1, Part(node, tp, less))
                case "degree":
                    for changed in parts if pick & 1 else [part]:
                        changed.tp = changed.tp * 2 if pick & 2 else changed.tp // 2
                case "size":
                    # An earlier move of the same step may have left no samples; such a plan is none.
                    sizes = [size for size in range(1, each.samples + 1) if each.samples % size == 0] or [each.size]
                    each.size = sizes[pick % len(sizes)]
                case "away":
                    nodes = [*range(len(state.offers)), self.new_node(state, pick)]
                    part.node = nodes[pick % len(nodes)] if pick & 1 else parts[other].node
        match kind:
            case "samples" if len(state.lines) > 1:
                self.hand_over(state, line, dice.choice(state.lines))
            case "another":
                state.lines.append(line.copy())
                fresh: dict[int, int] = {}
                for part in state.lines[-1].parts:
                    if dice.random() < 0.8 or part.node in fresh:
                        part.node = fresh.setdefault(part.node, self.new_node(state, pick, state.offers[part.node]))
                self.share_out(state)
            case "drop" if len(state.lines) > 1:
                state.lines.remove(line)
                self.share_out(state)
            case "offer":
                state.offers[line.parts[at].node] = dice.choice(sorted(self.devices))
            case "zero":
                state.zero = 1 - state.zero
        return kind

    def new_node(self, state: State, pick: int, offer: str | None = None) -> int:
        names = sorted(self.devices)
        state.offers.append(offer if offer is not None else names[pick % len(names)])
        return len(state.offers) - 1

    def hand_over(self, state: State, giver: Line, taker: Line) -> None:
        """Let one kind of pipelines carry more of the batch and another less."""
        givers, takers = ([one for one in state.lines if one.like(line, state.offers)] for line in (giver, taker))
        moved = self.dice.choice((1, taker.size, giver.size)) * math.lcm(len(givers), len(takers))
        if givers[0] is takers[0]:
            return
        for line in givers:
            line.samples -= moved // len(givers)
        for line in takers:
            line.samples += moved // len(takers)
        for line in (*givers, *takers):
            sizes = [size for size in range(1, max(1, line.samples) + 1) if line.samples % size == 0]
            line.size = min(sizes, key=lambda size, line=line: (abs(math.log(size / line.size)), size))  # type: ignore[misc]

    def share_out(self, state: State) -> None:
        """Share the batch out again, in proportion to what pipelines carried."""
        batch = self.job.training.global_batch_size
        total = max(1, sum(line.samples for line in state.lines))
        for line in state.lines:
            line.samples = max(line.size, round(batch * line.samples / total / line.size) * line.size)
        left = batch - sum(line.samples for line in state.lines)
        last = max(state.lines, key=lambda line: line.samples)
        last.samples += left
        while last.samples > 0 and last.samples % last.size:
            last.size -= 1


def begun(plan: Plan) -> State:
    """Return a plan as the attacker has it."""
    numbers = {node.id: number for number, node in enumerate(plan.nodes)}
    lines = [
        Line(
            [
                Part(
                    numbers[stage.node],
                    len(stage.devices),
                    stage.end_layer - stage.first_layer,
                    stage.recompute,
                )
                for stage in pipeline.stages
            ],
            pipeline.microbatch_size,
            pipeline.microbatch_size * pipeline.microbatches,
        )
        for pipeline in plan.pipelines
    ]
    return State([node.offer for node in plan.nodes], lines, plan.zero_stage)


def random_job(dice: random.Random, number: int) -> Job:
    """Return a job at random; many have no plan."""
    model = dice.choice(sorted(MODELS))
    names = dice.sample(ACCELERATORS, dice.choice((1, 2, 2, 3)))
    training = {
        "global_batch_size": dice.choice((16, 32, 48, 64, 96, 100, 128, 250, 256)),
        "sequence_length": MODELS[model],
        "steps": 500,
        "precision": dice.choice(("fp16", "fp16", "bf16", "fp32")),
    }
    wanted: dict[str, Any] = {
        "name": f"attack-{number}",
        "model": {"preset": model},
        "training": training,
        "goal": dice.choice(("maximize-throughput", "maximize-throughput", "minimize-cost")),
        "resources": [
            {
                "provider": "gcp",
                "zones": sorted(dice.sample(ZONES, dice.choice((1, 1, 2, 3)))),
                "markets": dice.choice((["spot"], ["on-demand"], ["spot", "on-demand"])),
                "accelerators": {name: dice.choice((1, 2, 4, 6, 8, 8, 12, 16)) for name in sorted(names)},
            }
        ],
    }
    if dice.random() < 0.3:
        wanted["constraints"] = {"max_usd_per_hour": dice.choice((5, 10, 20, 40))}
    return Job.model_validate(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attack ended: the share by which the plan was beaten, and the row of the table."""

    beaten: float
    row: str


def attacks(jobs: Iterable[Job], seconds: float) -> Iterator[Outcome]:
    """Attack the plan of each job that has one."""
    for seed, job in enumerate(jobs, 1):
        outcome = attack(job, seconds, seed=seed)
        if outcome is not None:
            yield outcome


def random_jobs(seed: int) -> Iterator[Job]:
    """Yield jobs at random without end."""
    dice = random.Random(seed)
    return (random_job(dice, number) for number in count())


def attack(job: Job, seconds: float, seed: int) -> Outcome | None:
    """Plan a job and attack the plan; None where there is no plan."""
    clock = FixedClock(AS_OF)
    try:
        before = time.process_time()
        document = api.plan(job, clock=clock)
        spent = time.process_time() - before
    except SailorError:
        return None
    if document.plan is None or document.prediction is None:
        return None
    profiles = workload.profiles.load()
    problem = problem_of(job, catalog=catalog.load(), network=network.load(), profiles=profiles, clock=clock)
    pools, rows = problem.space.pools, problem.space.candidates.rows
    attacker = Attack(
        job=job,
        scenario=problem.space.scenario,
        devices={pool.offer.id: pool.devices for pool in pools},
        row_of={pool.offer.id: pool.row for pool in pools},
        rows=[row.devices for row in rows],
        dice=random.Random(seed),
    )
    start = begun(document.plan)
    shown = attacker.value(start.copy())
    planned = document.prediction.iteration_s_replay
    if job.goal is Goal.MINIMIZE_COST:
        assert document.cost is not None
        planned = document.cost.total_usd or document.cost.usd_per_iteration
    assert math.isclose(shown, planned, rel_tol=1e-6), "the attacker sees another plan"
    beaten = shown / attacker.run(start, seconds) - 1.0
    offered = ", ".join(f"{devices} {name}" for name, devices in sorted(job.resources[0].accelerators.items()))
    what = f"{job.model.preset}, {job.training.precision}, batch {job.training.global_batch_size}, {offered}"
    what += f", {len(job.resources[0].zones)} zones, {job.goal.value}"
    moves = ", ".join(name for name, _ in attacker.moves.most_common(3)) or "–"
    row = (
        f"| {job.name}: {what} | {document.status.value} | {shown:.4g} | {100 * beaten:.2f} % | {moves} | "
        f"{attacker.evaluated} | {spent:.1f} |"
    )
    return Outcome(beaten=beaten, row=row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--job", type=Path, action="append", default=[])
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    jobs = [Job.model_validate(yaml.safe_load(file.read_text())) for file in chosen.job]
    rows, beaten = [], 0
    for outcome in islice(attacks(jobs or random_jobs(chosen.seed), chosen.seconds), len(jobs) or chosen.cases):
        rows.append(outcome.row)
        beaten += outcome.beaten > BEATEN
        print(outcome.row, file=sys.stderr, flush=True)
    if len(rows) < len(jobs):
        raise SystemExit(f"{len(jobs) - len(rows)} of {len(jobs)} jobs have no plan")
    write(
        "\n".join([measured_on(), COLUMNS, *rows, "", f"Beaten by more than 0.5 %: {beaten} of {len(rows)}.", ""]),
        chosen.output,
    )


COLUMNS = (
    "| job | status | shown (s or USD) | beaten by | moves that helped | plans evaluated | CPU s of plan |\n"
    "|---|---|---|---|---|---|---|"
)


if __name__ == "__main__":
    main()
