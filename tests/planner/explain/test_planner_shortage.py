"""Why a smaller space holds no plan, in figures, held against going through all plans."""

from __future__ import annotations

import re

import pytest

from factories.planning import AS_OF, data, make_space, plan, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Status
from sailor_cloud.planner import SearchOptions, search
from sailor_cloud.planner.explain.shortage import NO_PLAN, shortage

# A model of which a CPU-slow, with 16 MiB, holds only a part.
LARGE = {"blocks": 3, "hidden": 256, "batch": 1}


def job(slow: int, fast: int = 0, *, zones: tuple[str, ...] = ("local-a",)):
    counts = {"CPU-slow": slow, "CPU-fast": fast}
    return tiny_job(**LARGE, zones=zones, accelerators={name: count for name, count in counts.items() if count})


def test_the_count_named_is_the_smallest_with_which_there_is_a_plan():
    told = shortage(make_space(job(1)), one_zone=False)
    needed = int(re.fullmatch(r"does not fit in memory: equal stages need (\d+) CPU-slow, and the quota is 1", told)[1])
    assert needed > 2
    assert plan(job(needed - 1)).status is Status.INFEASIBLE
    assert plan(job(needed)).status is Status.OPTIMAL


def test_an_infeasible_job_says_how_many_devices_the_model_takes():
    reason = plan(job(1)).infeasibility
    assert reason.constraint == "memory"
    assert shortage(make_space(job(1)), one_zone=False) in reason.message


def test_one_zone_has_the_devices_of_one_zone_only():
    space = make_space(job(2, zones=("local-a", "local-b")))
    assert "CPU-slow, and the quota is 2" in shortage(space, one_zone=True)
    assert "CPU-slow, and the quota is 2" not in shortage(space, one_zone=False)


def test_a_model_with_a_layer_too_large_for_any_device_is_explained_by_that_layer():
    told = shortage(make_space(tiny_job(blocks=1, hidden=1024, accelerators={"CPU-slow": 4})), one_zone=False)
    assert told.startswith("does not fit in memory: one layer takes ")
    assert told.endswith(" of 16 MiB of one CPU-slow")


def test_where_the_model_would_fit_nothing_else_is_claimed():
    assert shortage(make_space(tiny_job()), one_zone=True) == NO_PLAN


@pytest.fixture(scope="module")
def document():
    prices, links, times = data()
    options = SearchOptions(alternatives=True)
    given = job(1, 1)
    return search(given, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), options=options)


def test_every_accelerator_alone_is_an_alternative_or_says_what_it_lacks(document):
    (alone,) = (row for row in document.rejected if row.restrictions == ("one-accelerator",))
    assert alone.what == "all CPU-slow"
    assert alone.why.endswith("CPU-slow, and the quota is 1")
