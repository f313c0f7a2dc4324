"""Predicted against measured iteration time of heterogeneous plans on this machine's processor threads.

For each number of ranks the layers are first profiled with as many ranks training, by what `sailor-cloud profile` runs;
the simulator then predicts plans that the profile has not seen, and the runtime trains them.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bars import Bar
from worlds import run_world, spec_of

from sailor_cloud import catalog, network, workload
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.launch.profiling import files, profiler
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Node, Pipeline, Plan, Stage
from sailor_cloud.simulator import Engine, Scenario
from sailor_cloud.simulator.engines import Transfers
from sailor_cloud.simulator.evaluate import evaluate

BAR = 0.15
AS_OF = datetime(2026, 11, 21, tzinfo=UTC)
# What the runtime does: a receive is posted before the tensor is needed, sums run beside the backward pass.
RUNTIME = Engine(transfers=Transfers.OVERLAPPED, overlap_sync=True, bucket_bytes=4.0 * 4 * 2**20)
FAST, SLOW = "CPU-fast", "CPU-slow"
MODEL = {
    "model_type": "gpt2",
    "vocab_size": 1024,
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
# A pipeline is (microbatch size, microbatches, stages); a stage (first layer, end layer, tp, accelerator).
PLANS: dict[str, Sequence[tuple[int, int, Sequence[tuple[int, int, int, str]]]]] = {
    "fast and slow stage, cut 5 against 3": [(2, 8, ((0, 5, 1, FAST), (5, 8, 1, SLOW)))],
    "fast and slow replica, 2 against 1 share": [(4, 4, ((0, 8, 1, FAST),)), (2, 4, ((0, 8, 1, SLOW),))],
    "two stages beside one device": [(4, 6, ((0, 4, 1, FAST), (4, 8, 1, FAST))), (2, 4, ((0, 8, 1, SLOW),))],
    "tp 2 into a slow stage": [(4, 6, ((0, 6, 2, FAST), (6, 8, 1, SLOW)))],
    "two unequal pipelines of two stages": [
        (4, 6, ((0, 4, 1, FAST), (4, 8, 1, FAST))),
        (2, 6, ((0, 6, 1, FAST), (6, 8, 1, SLOW))),
    ],
}


def measure(folder: Path, bars: list[Bar], *, steps: int = 8) -> list[str]:
    """Return the lines of a table and the mean error, which is added to `bars`."""
    lines = ["| plan | ranks | predicted | measured | error |", "|---|---|---|---|---|"]
    errors = []
    prices, profiled = catalog.load(), set()
    for number, (name, shapes) in enumerate(PLANS.items()):
        job = _job(shapes)
        decoder = workload.decoder(job.model)
        ranks = sum(tp for _, _, stages in shapes for _, _, tp, _ in stages)
        data = folder / f"profile-{ranks}"
        if ranks not in profiled:
            _profile(job, data, together=ranks)
            profiled.add(ranks)
        predicted_s = evaluate(*_scenario(job, shapes, data, prices)).prediction.iteration_s_replay
        spec = spec_of(model_spec(decoder), shapes, folder)
        found = run_world(spec, folder / f"plan-{number}", contenders=["runtime"], warm_up=3, rounds=steps, steps=1)
        measured_s = statistics.median(found["seconds"]["runtime"])
        errors.append(abs(predicted_s / measured_s - 1.0))
        lines.append(
            f"| {name} | {ranks} | {predicted_s:.3f} s | {measured_s:.3f} s | {predicted_s / measured_s - 1.0:+.1%} |"
        )
    mean = statistics.fmean(errors)
    bar = Bar(what="prediction, mean error", found=f"{mean:.1%}", asked=f"≤ {BAR:.0%}", met=mean <= BAR)
    bars.append(bar)
    return [*lines, "", f"Mean of absolute errors: {mean:.1%} (bar: at most {BAR:.0%}): {bar.verdict}."]


def _job(shapes: Sequence[tuple[int, int, Any]]) -> Job:
    batch = sum(size * count for size, count, _ in shapes)
    resource = {"provider": "local", "zones": ["local-a"], "accelerators": {FAST: 4, SLOW: 4}}
    training = {"global_batch_size": batch, "sequence_length": 128, "steps": 100, "gradient_clipping": 1.0}
    return Job.model_validate({"name": "prediction", "model": MODEL, "training": training, "resources": [resource]})


def _profile(job: Job, data: Path, *, together: int) -> None:
    tps = (1, 2) if together == 3 else (1,)
    wanted = profiler.Wanted(accelerator=FAST, microbatch_sizes=(2, 4), tps=tps, together=together)
    decoder = workload.decoder(job.model)
    task = profiler.task_of(job, decoder, wanted)
    rows = profiler.run_profile(task, data, lambda done, of, what: print(f"profile {together}: {done}/{of} {what}"))
    found = files.profile_of(rows, task, decoder, catalog.load().accelerator(FAST))
    files.write(found, task, data, today=AS_OF.date(), zones=None)


def _scenario(job: Job, shapes: Sequence[tuple[int, int, Any]], data: Path, prices: Any) -> tuple[Plan, Scenario]:
    """Return the plan, each stage on a node of its own, and what it is judged against."""
    offers: dict[str, Offer] = {}
    nodes, pipelines = [], []
    for p, (size, count, stages) in enumerate(shapes):
        built = []
        for first, end, tp, accelerator in stages:
            found = prices.offers(provider="local", zones=["local-a"], accelerators=[accelerator])[0]
            offer = dataclasses.replace(found, id=f"{found.id}-{tp}", accelerator_count=tp)
            offers[offer.id] = offer
            node = f"node-{len(nodes)}"
            nodes.append(Node(id=node, offer=offer.id, devices=tp))
            built.append(Stage(first_layer=first, end_layer=end, node=node, devices=tuple(range(tp))))
        pipelines.append(Pipeline(id=p, microbatch_size=size, microbatches=count, stages=tuple(built)))
    plan = Plan(zero_stage=0, precision=job.training.precision, nodes=tuple(nodes), pipelines=tuple(pipelines))
    scenario = Scenario(
        job=job,
        decoder=workload.decoder(job.model),
        offers=offers,
        catalog=prices,
        network=network.load(profiles=data),
        profiles=workload.profiles.load(profiles=data),
        as_of=AS_OF,
        engine=RUNTIME,
    )
    return plan, scenario
