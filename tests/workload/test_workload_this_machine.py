from __future__ import annotations

import os

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.workload.profiles import load
from sailor_cloud.workload.this_machine import VARIABLE, this_machine


def test_a_machine_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "16 cores at 0.85")
    assert this_machine(load().local) == LocalMachine(cores=16, speed=0.85)


@pytest.mark.parametrize(
    "wrong", ["", "4", "4 cores", "0 cores at 1", "4 cores at 0", "4 cores at nan", "x cores at 1"]
)
def test_a_machine_named_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(VARIABLE, wrong)
    with pytest.raises(RequestError, match=r"it takes cores and speed, as in '4 cores at 1\.0'"):
        this_machine(load().local)


def test_the_cores_of_this_process_count_and_their_speed_is_reported_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    usable = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(usable)})
        found = this_machine(load().local)
    finally:
        os.sched_setaffinity(0, usable)
    assert found.cores == 1
    assert found.speed > 0.0
    assert found.speed / 0.05 == pytest.approx(round(found.speed / 0.05))


@pytest.mark.parametrize(("load_average", "told"), [(0.0, []), (9.5, ["9.5"])])
def test_other_programs_that_take_its_cores_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, load_average: float, told: list[str]
) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load_average, 0.0, 0.0))
    this_machine(load().local)
    assert caplog.messages == [
        f"this machine is busy: load average {load} on 2 cores; nodes on it will be slower than planned"
        for load in told
    ]
