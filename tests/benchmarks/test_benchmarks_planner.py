"""The planner's benchmarks: the former plans as a file, and the aims."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "planner"))

from explain_time import EXAMPLES
from first_screen import AIMS_S, complete
from not_worse import FORMER, Compared, read
from time_and_gap import CASES, changed, gap_aim
from time_limit import JOBS

from sailor_cloud.model.job import Job


def test_every_former_plan_carries_the_batch_of_its_job_on_devices_that_its_nodes_have():
    _, every = read(FORMER)
    assert len(every) > 30
    for former in every:
        job, plan = Job.model_validate(changed(former.case)), former.plan
        assert sum(pipeline.samples for pipeline in plan.pipelines) == job.training.global_batch_size, former.case.name
        devices = {(node.id, number) for node in plan.nodes for number in range(node.devices)}
        used = [
            (stage.node, number) for pipeline in plan.pipelines for stage in pipeline.stages for number in stage.devices
        ]
        assert len(used) == len(set(used))
        assert set(used) <= devices


def test_every_job_of_time_and_gap_has_a_former_plan_but_the_infeasible_one_and_those_that_are_newer():
    names = {former.case.name for former in read(FORMER)[1]}
    assert {case.name for case in CASES} - names == {"quickstart, deadline of 20 s"}


def test_a_plan_that_is_no_longer_possible_has_no_ratio_and_a_lost_plan_is_worse():
    assert Compared(unit="s", former=1.0, today=9.0, hindrance="does not fit in memory").ratio == 0.0
    assert Compared(unit="s", former=1.0, today=float("inf")).ratio == float("inf")


@pytest.mark.parametrize(
    ("name", "aim"),
    [
        ("quickstart", None),
        ("1 zone x 128 A100", 0.02),
        ("1 zone x (8 A100 + 32 V100)", 0.06),
        ("2 zones x (8 A100 + 32 V100), 120 USD", 0.1),
        ("opt-30b, 20 zones, five kinds, 4,000 devices", 0.15),
    ],
)
def test_the_aim_of_a_gap_follows_zones_accelerators_and_money(name: str, aim: float | None):
    assert gap_aim(next(changed(case) for case in CASES if case.name == name)) == aim


def test_the_time_limit_is_measured_on_six_jobs():
    assert len(JOBS) == 6


def test_the_aims_of_the_first_screen_belong_to_measured_jobs():
    assert set(AIMS_S) <= {Path(name).stem for name in EXAMPLES}


def test_a_first_screen_is_complete_once_the_bar_below_it_is_drawn():
    waiting, decided = b"searching for the best plan", b"gcp  the cheapest plan is chosen; still searching"
    assert not complete(waiting + decided)
    assert complete(waiting + decided + b"cheapest 64.85" + waiting)
