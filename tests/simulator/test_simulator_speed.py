"""The speeds that a search counts on, in time of the processor: others on the machine don't count."""

from __future__ import annotations

import time

import numpy as np

from factories.machine_speed import slowdown
from factories.scenarios import chain, gcp_scenario, make_plan, offer_in
from sailor_cloud.simulator import Engine, pipeline_s
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.iteration import run_iteration


def best_of(count: int, work) -> float:
    seconds = []
    for _ in range(count):
        started = time.process_time()
        work()
        seconds.append(time.process_time() - started)
    return min(seconds)


def test_a_512_device_plan_without_two_like_pipelines_replays_in_100_ms() -> None:
    counts = [16 + p % 16 for p in range(64)]
    scenario = gcp_scenario(batch=sum(counts))
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    plan = make_plan(
        scenario,
        [
            chain(p, [offer] * 4, (0, 5 + p // 16, 12, 19, 26), microbatch_size=1, microbatches=count)
            for p, count in enumerate(counts)
        ],
    )
    assert plan.world_size == 512
    layout = lay_out(plan, scenario)
    assert best_of(5, lambda: run_iteration(layout)) <= 0.1 * slowdown()


def test_the_closed_form_judges_20_000_plans_a_second() -> None:
    random = np.random.default_rng(0)
    compute, cuts = random.uniform(0.1, 1.0, (20_000, 8)), random.uniform(0.0, 0.1, (20_000, 7))
    counts = random.integers(1, 64, 20_000)
    assert best_of(3, lambda: pipeline_s(compute, cuts, counts, engine=Engine())) <= slowdown()
