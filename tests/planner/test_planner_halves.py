"""Halves of a search side by side: the same answer, whatever becomes of the process beside."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

import pytest

from factories.planning import AS_OF, data, example
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.planner import Wishes, search
from sailor_cloud.planner.halves import both

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process")


def planned(job: Job, wishes: Wishes) -> PlanDocument:
    prices, links, times = data()
    return search(job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), wishes=wishes)


def test_the_first_half_runs_in_a_process_of_its_own():
    assert both(os.getpid, os.getpid, processes=1) == (os.getpid(), os.getpid())
    first, second = both(os.getpid, os.getpid, processes=2)
    assert second == os.getpid()
    assert first != second


def test_what_the_process_beside_could_not_do_is_done_here():
    here = os.getpid()

    def dies_beside():
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done here"

    assert both(dies_beside, lambda: 2, processes=2) == ("done here", 2)


def test_an_error_of_either_half_reaches_the_caller_and_leaves_no_process():
    def fails():
        raise ValueError("no data")

    for halves in ((fails, lambda: 2), (lambda: 1, fails)):
        with pytest.raises(ValueError, match="no data"):
            both(*halves, processes=2)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("zones", [("euc1-az1", "euc1-az2"), ("euc1-az2", "euc1-az1")], ids=["in order", "reversed"])
def test_zones_that_stand_for_one_another_are_rated_alike_in_every_process(zones: tuple[str, str]) -> None:
    """Their prices differ, and the job may name the one that stands for the other last."""
    entries = [
        {"provider": "aws", "zones": [zone], "markets": ["spot"], "accelerators": {"A100-80": 16}} for zone in zones
    ]
    job = example("gcp-a100-v100.yaml", resources=entries, goal="minimize-cost", constraints={}, cloud={})
    alone, beside = (planned(job, Wishes(processes=count)) for count in (1, 2))
    assert alone.plan is not None
    assert alone.to_json() == beside.to_json()


def test_a_plan_and_all_beside_it_is_the_same_with_one_process_and_with_two():
    job = example("gcp-a100-v100.yaml", resources__0__accelerators={"A100-40": 4, "V100-16": 8})
    alone, beside = (planned(job, Wishes(beside=True, frontier=True, processes=count)) for count in (1, 2))
    assert alone.plan is not None
    assert alone.alternatives
    assert alone.to_json() == beside.to_json()
