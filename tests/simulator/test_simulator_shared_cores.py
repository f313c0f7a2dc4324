from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor_cloud import api, catalog, network, workload
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import CostKind, PlanDocument, Waits
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.simulator import Evaluation, evaluate
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.simulator.timing.iteration import SharedClock

ROOT = Path(__file__).resolve().parents[2]
BUSY = st.lists(
    st.tuples(st.floats(0.0, 10.0), st.floats(0.001, 5.0), st.integers(1, 4)).map(
        lambda each: (each[0], each[0] + each[1], each[2])
    ),
    min_size=1,
    max_size=12,
)


@cache
def planned() -> PlanDocument:
    """The example's plan where each node has a core."""
    job = parse_job((ROOT / "examples" / "quickstart.yaml").read_text(), origin="quickstart")
    return api.plan(job, clock=FixedClock(datetime(2026, 11, 21, tzinfo=UTC)), machine=machine(64))


def machine(cores: int, speed: float = 1.0) -> LocalMachine:
    return LocalMachine(cores=cores, speed=speed)


@cache
def on(cores: int, speed: float = 1.0) -> Evaluation:
    document = planned()
    assert document.plan is not None
    scenario = Scenario(
        job=document.job,
        decoder=workload.decoder(document.job.model),
        offers=document.inputs.offers_by_id(),
        catalog=catalog.load(),
        network=network.load(),
        profiles=dataclasses.replace(workload.profiles.load(), machine=machine(cores, speed)),
        as_of=document.as_of,
    )
    return evaluate(document.plan, scenario, timeline=True)


def computing_s(found: Evaluation) -> float:
    return sum(span.end_s - span.start_s for span in found.timeline if span.what in {"forward", "backward", "update"})


def test_two_of_three_ranks_at_once_on_two_cores_wait_for_nobody() -> None:
    clock = SharedClock.of([(0.0, 1.0, 1), (0.0, 2.0, 1), (1.0, 2.0, 1)], cores=2)
    assert clock.at([0.5, 2.0, 3.0]).tolist() == [0.5, 2.0, 3.0]


def test_three_ranks_on_two_cores_take_half_as_long_again() -> None:
    clock = SharedClock.of([(0.0, 1.0, 1), (0.0, 1.0, 2), (1.0, 2.0, 1)], cores=2)
    assert clock.at([0.5, 1.0, 2.0, 4.0]).tolist() == pytest.approx([0.75, 1.5, 2.5, 4.5])


@given(busy=BUSY, cores=st.integers(1, 16))
def test_no_time_undercuts_that_of_a_core_for_each_rank_or_the_work_over_the_cores(
    busy: list[tuple[float, float, int]], cores: int
) -> None:
    end = max(end for _, end, _ in busy)
    shared = float(SharedClock.of(busy, cores=cores).at(end))
    work = sum((stop - start) * ranks for start, stop, ranks in busy)
    assert shared >= max(end, work / cores) * (1 - 1e-12)
    assert shared <= end + work / cores + 1e-9


@given(busy=BUSY, cores=st.integers(1, 16))
def test_another_core_never_makes_anything_later(busy: list[tuple[float, float, int]], cores: int) -> None:
    ends = sorted(end for _, end, _ in busy)
    here, more = (SharedClock.of(busy, cores=count).at(ends) for count in (cores, cores + 1))
    assert (more <= here * (1 + 1e-12)).all()


def test_cores_enough_for_all_ranks_change_nothing_but_the_speed() -> None:
    here, there = on(8).prediction, on(16).prediction
    assert dataclasses.replace(here, duration_s=0.0) == dataclasses.replace(there, duration_s=0.0)
    assert here.duration_s > there.duration_s
    assert on(16, 2.0).prediction.iteration_s_replay < 0.53 * on(16).prediction.iteration_s_replay


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_too_few_cores_make_an_iteration_as_long_as_its_work_takes(cores: int) -> None:
    found, free = on(cores).prediction, on(16)
    work = computing_s(free) / cores
    assert found.iteration_s >= work
    assert work <= found.iteration_s_replay <= work + free.prediction.iteration_s_replay


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_the_waits_of_every_stage_add_up_to_the_shared_iteration(cores: int) -> None:
    found = on(cores)
    for stage in found.stage_waits:
        waits: Waits = stage.waits
        assert min(dataclasses.astuple(waits)) >= -1e-9
        assert sum(dataclasses.astuple(waits)) == pytest.approx(found.prediction.iteration_s_replay)


def test_the_machine_is_an_input_that_the_document_records() -> None:
    document = planned()
    assert json.loads(document.to_json())["inputs"]["machine"] == {"cores": 64, "speed": 1.0}
    crowded = dataclasses.replace(document, inputs=dataclasses.replace(document.inputs, machine=machine(2)))
    again = api.simulate(PlanDocument.from_json(crowded.to_json()))
    assert again.prediction == on(2).prediction
    assert again.prediction.iteration_s_replay > api.simulate(document).prediction.iteration_s_replay


@pytest.mark.parametrize(("cores", "more"), [(1, 2), (2, 4), (4, 16)])
def test_nodes_start_sooner_where_there_are_more_cores(cores: int, more: int) -> None:
    assert start_s(on(cores)) > start_s(on(more)) > 0.0


def start_s(found: Evaluation) -> float:
    """Seconds that a node is paid for before the first step."""
    return max(line.quantity for line in found.cost.lines if line.kind is CostKind.STARTUP) * 3600.0


def test_uncertainty_of_the_machine_widens_the_error_of_local_plans() -> None:
    document = planned()
    known, found = workload.profiles.load(), on(4).prediction
    alone = {each.what: each.error_p50 for each in found.error_shares}
    both = math.hypot(*(math.asinh(alone[what]) for what in ("this machine", "load of this machine")))
    assert both == pytest.approx(known.errors.at_least(known.local.error_p50, known.local.error_p90))
    assert found.error_p50 > max(alone.values())
    assert document.cost is not None
    nodes = [line for line in document.cost.lines if line.unit == "hour"]
    assert nodes
    assert all(line.worst_usd == pytest.approx(line.usd * (1 + found.error_p90)) for line in nodes)
