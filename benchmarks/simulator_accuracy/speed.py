"""How fast the simulator answers: one replay of a large plan, and the closed form over many plans at once.

In time of the processor, which is what one thread takes on a machine that nobody else uses.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np

from sailor_cloud import catalog, network, workload
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.simulator import Engine, Scenario, pipeline_s
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.iteration import run_iteration
from sailor_cloud.workload import profiles

_PIPELINES, _STAGES, _DEVICES = 64, 4, 2
_MICROBATCHES = 16
_REPEATS = 5
_PLANS, _PLAN_STAGES = 50_000, 8


def replay_512_s() -> float:
    """Return the least seconds of five to replay 64 pipelines, no two alike, of 4 stages on 2 devices each."""
    plan, scenario = _large_plan()
    seconds = []
    for _ in range(_REPEATS):
        layout = lay_out(plan, scenario)
        started = time.process_time()
        run_iteration(layout)
        seconds.append(time.process_time() - started)
    return min(seconds)


def closed_form_per_s() -> float:
    """Return how many 8-stage plans per second the closed form judges, in the fastest of five rounds."""
    random = np.random.default_rng(0)
    compute = random.uniform(0.1, 1.0, (_PLANS, _PLAN_STAGES))
    cuts = random.uniform(0.0, 0.1, (_PLANS, _PLAN_STAGES - 1))
    microbatches = random.integers(1, 64, _PLANS)
    seconds = []
    for _ in range(_REPEATS):
        started = time.process_time()
        pipeline_s(compute, cuts, microbatches, engine=Engine())
        seconds.append(time.process_time() - started)
    return _PLANS / min(seconds)


def _large_plan() -> tuple[Plan, Scenario]:
    offers = catalog.load().offers(
        provider="gcp", zones=["us-central1-a", "us-central1-b"], accelerators=["A100-40"], markets=["on-demand"]
    )
    pair = [offer for offer in offers if offer.accelerator_count == _DEVICES]
    nodes, pipelines = [], []
    for p in range(_PIPELINES):
        stages, cuts = [], _cuts(p)
        for s in range(_STAGES):
            node = Node(id=f"p{p}s{s}", offer=pair[p % len(pair)].id, devices=_DEVICES)
            nodes.append(node)
            stages.append(
                Stage(first_layer=cuts[s], end_layer=cuts[s + 1], node=node.id, devices=tuple(range(_DEVICES)))
            )
        # Microbatch counts differ from pipeline to pipeline, so none can share another's replay.
        pipelines.append(Pipeline(id=p, microbatch_size=1, microbatches=_MICROBATCHES + p % 16, stages=tuple(stages)))
    plan = Plan(zero_stage=0, precision=Precision.FP16, nodes=tuple(nodes), pipelines=tuple(pipelines))
    job = Job.model_validate(
        {
            "name": "large",
            "model": {"preset": "sailor-opt-350"},
            "training": {
                "global_batch_size": plan.global_batch_size,
                "sequence_length": 2048,
                "precision": "fp16",
            },
            "resources": [
                {"provider": "gcp", "zones": ["us-central1-a", "us-central1-b"], "accelerators": {"A100-40": 512}}
            ],
        }
    )
    scenario = Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers={offer.id: offer for offer in pair},
        catalog=catalog.load(),
        network=network.load(),
        profiles=profiles.load(),
        as_of=datetime(2026, 11, 21, tzinfo=UTC),
    )
    return plan, scenario


def _cuts(pipeline: int) -> tuple[int, ...]:
    """Four different ways to cut 26 layers in four."""
    shift = pipeline // 16
    return (0, 5 + shift, 12, 19, 26)
