"""Three zones in network namespaces: does an iteration take as long as the planner says, and are plans in its order?

    sudo python benchmarks/launch/namespaces.py [-o benchmarks/results/launch_namespaces.md]

Rates between zones are set with tbf, then messages of several sizes are timed and a curve is fitted to them, as
`profile --link-to` does. Each plan is predicted with these curves and trained by real ranks over gloo. Says PASSED or
MISSED, and ends with 1 where it is missed. A machine that can't do this says SKIPPED and why.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from zone_report import Row, passed, report
from zones import INTERFACE, CannotError, Zone, events, timed_messages, zones

from sailor_cloud import catalog, network, resources, workload
from sailor_cloud.clock import SystemClock
from sailor_cloud.launch.fleet.run_spec import build_spec
from sailor_cloud.model.document import SCHEMA_VERSION, Inputs, Objective, PlanDocument, Search, Status
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Offer, Precision, Provider
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.network.curve_fit import FittedCurve, fit_curve, write_curves
from sailor_cloud.network.records import CurveScope
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.simulator import Evaluation, Scenario, evaluate

JOB = """
name: namespaces
model: {model_type: gpt2, vocab_size: 256, hidden_size: 128, num_hidden_layers: 4, num_attention_heads: 4,
        max_position_embeddings: 128}
training: {global_batch_size: 12, sequence_length: 128, steps: 1000, precision: fp32}
constraints: {deadline: 10h}
resources:
  - {provider: local, zones: [local-a, local-b, local-c], accelerators: {CPU-fast: 4}}
"""
# So slow that the ranks' own work, on processors that they share, is less than a tenth of an iteration: it is the
# network that is judged. Plans that are nearer to each other than the error that is asked for have no order.
MBIT_PER_S = {("local-a", "local-b"): 12.0, ("local-b", "local-c"): 5.0, ("local-a", "local-c"): 1.6}
# The first is for the round trip.
PROBES = (8, 2**15, 2**17, 2**19)
STEPS = 6
UNSETTLED = 2
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class Case:
    """Pipelines of equal microbatch count 12 / pipelines; each is a list of (zone letter, end layer)."""

    name: str
    pipelines: tuple[tuple[tuple[str, int], ...], ...]
    microbatch_size: int = 1

    def plan(self) -> Plan:
        nodes: list[Node] = []
        pipelines = []
        for index, cuts in enumerate(self.pipelines):
            first, stages = 0, []
            for letter, end in cuts:
                node = f"n{len(nodes)}"
                nodes.append(Node(id=node, offer=f"local-{letter}", devices=1))
                stages.append(Stage(first_layer=first, end_layer=end, node=node, devices=(0,)))
                first = end
            samples = 12 // len(self.pipelines)
            pipelines.append(
                Pipeline(
                    id=index,
                    microbatch_size=self.microbatch_size,
                    microbatches=samples // self.microbatch_size,
                    stages=tuple(stages),
                )
            )
        return Plan(zero_stage=0, precision=Precision.FP32, nodes=tuple(nodes), pipelines=tuple(pipelines))


CASES = (
    Case("two stages, a-b", ((("a", 3), ("b", 6)),)),
    Case("two stages, b-c", ((("b", 3), ("c", 6)),)),
    Case("two stages, a-c", ((("a", 3), ("c", 6)),), microbatch_size=3),
    Case("two copies, a and b", ((("a", 6),), (("b", 6),)), microbatch_size=6),
    Case("three stages, a-b-c", ((("a", 2), ("b", 4), ("c", 6)),), microbatch_size=3),
    Case("two copies of two stages, a-b and b-c", ((("a", 3), ("b", 6)), (("b", 3), ("c", 6)))),
)


def scenario(job: Job, curves: Mapping[tuple[str, str], FittedCurve], folder: Path) -> Scenario:
    """Return what plans are judged by: the shipped data, a third zone, and the measured curves between zones."""
    data = resources.data_root()
    shutil.copytree(data / "pricing", folder / "pricing")
    with (folder / "pricing" / "zones.csv").open("a") as file:
        file.write("local,local,local-c\n")
    own = folder / "bandwidth"
    own.mkdir()
    table, base = own / "curves.csv", data / "bandwidth_profiles" / "curves.csv"
    for (src, dst), curve in curves.items():
        place = (CurveScope.ZONES, src, "CPU-fast", dst, "CPU-fast")
        write_curves(table, base, curve, [place], source="probe", as_of=f"{datetime.now(UTC):%Y-%m-%d}")
        base = table
    prices = catalog.load(pricing=folder / "pricing")
    (shipped,) = prices.offers(zones=("local-a",), accelerators=("CPU-fast",))
    offers = {f"local-{letter}": replace(shipped, id=f"local-{letter}", zone=f"local-{letter}") for letter in "abc"}
    return Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers=offers,
        catalog=prices,
        network=network.load(profiles=own, pricing=folder / "pricing"),
        profiles=workload.profiles.load(),
        as_of=datetime.now(UTC),
    )


def document_of(plan: Plan, judged: Evaluation, scene: Scenario) -> PlanDocument:
    now = datetime.now(UTC)
    return PlanDocument(
        schema_version=SCHEMA_VERSION,
        status=Status.FEASIBLE,
        created_at=now,
        as_of=now,
        job=scene.job,
        inputs=Inputs(offers=tuple(scene.offers.values()), links=(), compute_profiles=()),
        objective=Objective(goal=scene.job.goal, value=1.0, unit="iterations/s"),
        constraints=scene.job.constraints,
        optimality_gap=None,
        bound=None,
        search=Search(seconds=0.0, columns=0, nodes=0),
        plan=plan,
        prediction=judged.prediction,
        cost=judged.cost,
        ttl_s=None,
        infeasibility=None,
        alternatives=(),
        rejected=(),
    )


def measure(
    plan: Plan, judged: Evaluation, scene: Scenario, where: Mapping[str, Zone], folder: Path
) -> tuple[float, float]:
    """Train a few steps under a plan, with ranks in their zones, and return the least iteration time of the settled
    ones, because other work on the machine only adds to it, and what rank 0 computed in that iteration.
    """
    folder.mkdir()
    offers: Mapping[str, Offer] = scene.offers
    placed = {node.id: where[offers[node.offer].zone] for node in plan.nodes}
    spec = build_spec(
        document_of(plan, judged, scene),
        scene.decoder,
        {node.id: _reachable(node, offers[node.offer], placed[node.id].address) for node in plan.nodes},
        run_id="namespaces",
        generation=1,
        master_port=29500,
        checkpoint_directory=str(folder / "checkpoints"),
        expires_at=datetime.now(UTC) + timedelta(hours=1),
        steps=STEPS,
        check=False,
    )
    (folder / "spec.json").write_text(spec.to_json())
    ranks = []
    try:
        for rank, node in enumerate(stage.node for pipeline in plan.pipelines for stage in pipeline.stages):
            arguments = ["--spec", folder / "spec.json", "--rank", rank, "--events", folder / f"events-{rank}.jsonl"]
            argv = [sys.executable, "-m", "sailor_runtime.training", *map(str, arguments), "--home", str(folder)]
            with (folder / f"rank-{rank}.log").open("wb") as log:
                environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE}
                ranks.append(subprocess.Popen(placed[node].command(*argv), stdout=log, stderr=log, env=environment))
        _wait(ranks, folder)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    steps = [event for event in events(folder / "events-0.jsonl") if event["event"] == "step"]
    return min((float(str(event["iteration_s"])), float(str(event["compute_s"]))) for event in steps[UNSETTLED:])


def _wait(ranks: list[subprocess.Popen[bytes]], folder: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while any(process.poll() is None for process in ranks):
        failed = [number for number, process in enumerate(ranks) if process.poll()]
        if failed or time.monotonic() > until:
            text = (folder / f"rank-{failed[0] if failed else 0}.log").read_text()[-1500:]
            raise RuntimeError(f"rank {failed or 'any'} did not come to its end: {text}")
        time.sleep(0.1)


def _reachable(node: Node, offer: Offer, address: str) -> ReachableNode:
    return ReachableNode(
        id=node.id,
        provider=Provider("local"),
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        accelerator=offer.accelerator,
        devices=node.devices,
        address=address,
        port=22,
        user="",
        host_public_key="",
        private_address=address,
        workdir="",
        created_at=SystemClock().now(),
    )


def run_cases(root: Path) -> tuple[dict[tuple[str, str], FittedCurve], list[Row]]:
    """Return the measured curves between zones and a row for every plan. Raises CannotError."""
    with zones(MBIT_PER_S) as where:
        curves = {
            (src.name, dst.name): fit_curve(timed_messages(src, dst, PROBES))
            for src in where.values()
            for dst in where.values()
            if src is not dst
        }
        scene = scenario(parse_job(JOB), curves, root)
        rows = []
        for number, case in enumerate(CASES):
            plan = case.plan()
            judged = evaluate(plan, scene)
            measured_s, compute_s = measure(plan, judged, scene, where, root / str(number))
            rows.append(
                Row(
                    plan=case.name,
                    ranks=plan.world_size,
                    predicted_s=judged.prediction.iteration_s_replay,
                    measured_s=measured_s,
                    predicted_compute_s=judged.prediction.waits.compute_s,
                    measured_compute_s=compute_s,
                )
            )
            print(rows[-1], file=sys.stderr, flush=True)
        return curves, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as root:
            curves, rows = run_cases(Path(root))
    except CannotError as error:
        print(f"SKIPPED: {error}")
        return 0
    text = report(MBIT_PER_S, curves, rows)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    return 0 if passed(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
