"""What settings promise: bounds that leave settings out without solving them, and whole mixes near a promise."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.columns import Columns
from sailor_cloud.planner.effort import NORMAL
from sailor_cloud.planner.goals import target_of
from sailor_cloud.planner.part import Likely, Part
from sailor_cloud.planner.settings import Setting
from sailor_cloud.planner.variants import part_of
from sailor_cloud.planner.whole_mixes import STRETCH, WHOLE_MIXES, WholeMixes


def part(goal: str) -> Part:
    resources = {"resources__0__accelerators": {"A100-40": 8, "V100-16": 16}, "resources__0__zones": ["us-central1-a"]}
    job = example("gcp-a100-v100.yaml", goal=goal, constraints={}, **resources)
    return Part(make_space(job), target_of(job), NORMAL)


def settings_of(search: Part) -> Iterator[tuple[Setting, Columns]]:
    for setting in search.settings.every():
        columns = search.settings.columns_of(setting)
        if columns is not None:
            yield setting, columns


@pytest.fixture(scope="module")
def cheapest() -> Part:
    return part("minimize-cost")


def test_no_mix_of_a_setting_costs_less_than_its_bounds(cheapest: Part) -> None:
    promises, solved, close = cheapest.promises, 0, 0
    for setting, columns in settings_of(cheapest):
        for seconds in np.geomspace(2.0, 500.0, 8):
            schedule = float(seconds) - cheapest.settings.sync_s(setting, 2)
            mix = promises.master.relaxed(columns, schedule, 1000)
            if mix is None:
                continue
            solved += 1
            usd = float(promises.target.value(promises.figures(float(seconds), mix.usd_per_hour, setting.sync_usd)))
            at, ever = promises.bound_at(setting, columns, float(seconds)), promises.bound(setting, columns)
            assert ever <= usd
            assert at <= usd
            close += at > 0.9 * usd
    assert solved > 100
    assert close > solved / 2, "a bound that is far off leaves nothing out"


def test_a_setting_that_cannot_beat_a_known_plan_is_left_out_and_one_that_can_is_not(cheapest: Part) -> None:
    compared = 0
    for setting, columns in settings_of(cheapest):
        promise = cheapest.promises.of(setting, 0.0, math.inf)
        if promise is not None:
            compared += 1
            assert cheapest.promises.of(setting, 0.0, promise.value * 1.000001) == promise
            assert cheapest.promises.of(setting, 0.0, cheapest.promises.bound(setting, columns)) is None
    assert compared > 10


def test_whole_mixes_near_a_promise_are_those_of_the_first_times_that_suffice() -> None:
    search = part("maximize-throughput")
    every_promise = [
        promise for likely in search.likely() for promise in search.promised(likely, math.inf, math.inf).promises
    ]
    promises = sorted(every_promise, key=lambda promise: promise.value)[:3]
    wholes = WholeMixes(search.space, search.settings, search.promises, search.assessor)
    best = []
    for promise in promises:
        for fitting in (True, False):
            columns = wholes._columns(promise, fitting=fitting)
            mixes = [
                wholes._mix(columns, promise, promise.iteration_s * stretch)
                for stretch in STRETCH
                if columns is not None
            ]
            every = [draft for mix in mixes for draft in wholes._drafts(mix)]
            found = wholes.near(promise, fitting=fitting)
            assert [draft.order() for draft in found] == [draft.order() for draft in every[:WHOLE_MIXES]]
            if found:
                best.append(found[0])
                known = wholes.near(promise, fitting=fitting, best=found[0].figures[search.target.goal])
                assert known[0].order() == found[0].order(), "what is no worse than the best plan is in reach"
                assert not wholes.near(promise, fitting=fitting, best=promise.value / 2)
    assert best


def test_settings_that_a_smaller_part_has_too_are_left_to_it() -> None:
    resources = {"resources__0__accelerators": {"A100-40": 8, "V100-16": 16}}
    job = example("gcp-a100-v100.yaml", constraints={}, **resources)
    space, target = make_space(job), target_of(job)
    here = part_of(space, {"A100-40", "V100-16"}, {"us-central1-a"}, zero_stage=0)
    small, whole = Part(here, target, NORMAL), Part(space, target, NORMAL)

    def zones(found: list[Likely]) -> list[set[str]]:
        members = [setting.members for likely in found for _, setting in likely.settings]
        return [{space.candidates.rows[whole.settings.kinds.members[k].row].zone for k in each} for each in members]

    among, left = zones(whole.likely()), zones(whole.likely([small]))
    assert {"us-central1-a"} in among
    assert left == [each for each in among if each != {"us-central1-a"}]
    everything = [len(likely.settings) for likely in small.likely()]
    assert [len(likely.settings) for likely in small.likely([small, whole])] == everything, "a part leaves itself all"
