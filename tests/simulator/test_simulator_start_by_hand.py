"""What nodes are paid for before the first step, computed by hand."""

from __future__ import annotations

import dataclasses

import pytest

from factories.scenarios import GCP, TINY, make_job, make_scenario
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.offer import Provider
from sailor_cloud.simulator.money import Start, start
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.workload import parameter_count

LOCAL = {"provider": "local", "zones": ["local-a"], "accelerators": {"CPU-fast": 4}}


def on(cores: int, *, speed: float, reference_cores: float = 4.0) -> Scenario:
    """A scenario whose local nodes cost round figures: 3 s, 2 core-seconds a node, a reference of 1 GFLOP/s."""
    job = make_job(model=TINY, resources=[LOCAL], batch=8, sequence_length=16)
    scenario = make_scenario(job)
    costs = dataclasses.replace(
        scenario.profiles.local,
        controller_cores=0.5,
        node_cores=0.25,
        start_s=3.0,
        start_core_s=2.0,
        check_iterations=7.0,
        reference_flops_per_s=1e9,
        reference_cores=reference_cores,
    )
    machine = LocalMachine(cores=cores, speed=speed)
    return dataclasses.replace(scenario, profiles=dataclasses.replace(scenario.profiles, local=costs, machine=machine))


def test_local_nodes_share_the_cores_of_the_machine_while_they_start() -> None:
    scenario = on(4, speed=2.0)
    # 6 FLOPs for each parameter and token; five steps of eight samples of 16 tokens are 640 tokens.
    reference_core_s = 6.0 * parameter_count(scenario.decoder) * 640 / 1e9
    # Of four cores the controller takes half a one and two nodes another half, so three are left.
    by_hand = 3.0 + (2 * 2.0 / 3.0 + reference_core_s / 3.0) / 2.0
    found = start(scenario, [Provider("local")], 2)
    assert found.fixed_s == pytest.approx(by_hand, rel=1e-12)
    assert found.iterations == 7.0


def test_the_reference_uses_no_more_cores_than_it_can() -> None:
    scenario = on(16, speed=1.0, reference_cores=2.0)
    reference_core_s = 6.0 * parameter_count(scenario.decoder) * 640 / 1e9
    free = 16 - 0.5 - 0.25
    by_hand = 3.0 + 2.0 / free + reference_core_s / 2.0
    assert start(scenario, [Provider("local")], 1).fixed_s == pytest.approx(by_hand, rel=1e-12)


def test_where_the_machine_is_not_known_or_not_the_only_place_the_providers_own_figures_hold() -> None:
    scenario = on(4, speed=2.0)
    unknown = dataclasses.replace(scenario, profiles=dataclasses.replace(scenario.profiles, machine=None))
    assert start(unknown, [Provider("local")], 2) == Start(fixed_s=15.0, iterations=0.0)
    assert start(scenario, [Provider("local"), Provider("gcp")], 2) == Start(fixed_s=420.0, iterations=0.0)
    assert start(scenario, [], 0) == Start(fixed_s=0.0, iterations=0.0)


@pytest.mark.parametrize(
    ("provider", "nodes", "seconds"),
    [
        ("gcp", 1, 420.0),
        ("gcp", 200, 420.0),
        ("gcp", 201, 480.0),
        ("aws", 120, 420.0),
        ("aws", 256, 540.0),
        ("local", 64, 15.0),
    ],
)
def test_more_nodes_than_rate_limits_allow_at_a_time_take_another_minute_for_each_lot(
    provider: str, nodes: int, seconds: float
) -> None:
    scenario = make_scenario(make_job(model=TINY, resources=[GCP]))
    assert start(scenario, [Provider(provider)], nodes) == Start(fixed_s=seconds, iterations=0.0)
