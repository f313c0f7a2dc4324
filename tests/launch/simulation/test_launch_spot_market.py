from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.simulation.spot_market import POLICIES, least_usd, play
from sailor_cloud.launch.simulation.spot_replay import OPTIMUM, replay_spot
from sailor_cloud.launch.simulation.spot_traces import ZoneTrace, availability, read_spot_traces
from sailor_cloud.planner.spot_timing import IDLE, ON_DEMAND, TICKS_PER_CHANGE_OVER, Moment, SpotTask

# A tick is one second here, a change-over four of them.
TASK = SpotTask(
    work_s=20.0, deadline_s=40.0, change_over_s=4.0, spot_usd_per_hour=3600 * 0.3, on_demand_usd_per_hour=3600.0
)
spells = st.lists(st.tuples(st.booleans(), st.integers(1, 15)), min_size=1, max_size=12)


def market(*zones: Sequence[bool]) -> NDArray[np.bool_]:
    return np.array(zones, dtype=bool).T


def drawn(zone: Sequence[tuple[bool, int]], ticks: int) -> list[bool]:
    up: list[bool] = []
    for there, length in itertools.cycle(zone):
        up += [there] * length
        if len(up) >= ticks:
            return up[:ticks]
    raise AssertionError


class Fixed:
    """Chooses what it was told, tick by tick, as far as the market has it."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices = choices

    def choose(self, moment: Moment) -> int:
        choice = self.choices[moment.tick]
        return choice if choice < 0 or moment.up[choice] else IDLE


@settings(max_examples=20, deadline=None)
@given(st.lists(spells, min_size=1, max_size=3), st.sampled_from([24, 27, 60]))
def test_no_policy_ever_misses_a_deadline_that_on_demand_can_keep_or_beats_the_optimum(
    zones: list[list[tuple[bool, int]]], ticks: int
) -> None:
    task = replace(TASK, deadline_s=float(ticks))
    up = market(*(drawn(zone, ticks) for zone in zones))
    least = least_usd(task, up)
    for name, policy in POLICIES.items():
        result = play(policy(task), task, up)
        assert result.finished, name
        assert result.usd >= least - 1e-9, name


def test_the_optimum_is_the_best_of_all_sequences_of_choices() -> None:
    task = replace(TASK, work_s=1.0, deadline_s=7.0)
    for seed in range(4):
        up = np.random.default_rng(seed).random((7, 1)) < 0.7
        tried = (play(Fixed(choices), task, up) for choices in itertools.product((IDLE, ON_DEMAND, 0), repeat=7))
        assert least_usd(task, up) == pytest.approx(min(result.usd for result in tried if result.finished))


@pytest.mark.parametrize("name", POLICIES)
def test_spot_that_is_always_there_is_all_that_is_paid_for(name: str) -> None:
    result = play(POLICIES[name](TASK), TASK, market([True] * 40))
    assert result.usd == pytest.approx(0.3 * (20 + TICKS_PER_CHANGE_OVER))
    assert (result.preemptions, result.lost_s) == (0, 4.0)


@pytest.mark.parametrize("name", ["bounded-wait", "greedy"])
def test_without_spot_the_work_is_done_on_demand_in_one_piece(name: str) -> None:
    result = play(POLICIES[name](TASK), TASK, market([False] * 40))
    assert result.usd == pytest.approx(TASK.all_on_demand_usd)


def test_a_start_that_a_preemption_ends_is_paid_for_and_trains_nothing() -> None:
    result = play(Fixed([0, 0, 0] + [ON_DEMAND] * 37), TASK, market([True] * 2 + [False] * 38))
    assert result.preemptions == 1
    assert result.lost_s == 2 + 4
    assert result.usd == pytest.approx(2 * 0.3 + 24)


def test_our_policy_waits_for_half_of_the_slack_beyond_its_reserve() -> None:
    """Of 112 ticks 20 are work, 4 a change-over and 48 reserve: it waits 20, and then pays for on-demand."""
    task = replace(TASK, deadline_s=112.0)
    result = play(POLICIES["bounded-wait"](task), task, market([False] * 112))
    assert result.seconds == 20 + 24
    assert result.usd == pytest.approx(TASK.all_on_demand_usd)
    # Spot that comes back while it waits is taken at once.
    result = play(POLICIES["bounded-wait"](task), task, market([False] * 19 + [True] * 93))
    assert result.usd == pytest.approx(0.3 * 24)


def test_our_policy_leaves_on_demand_for_capacity_that_has_lasted() -> None:
    """At 0.3 of the price that takes 1.3 / 0.7 change-overs, eight ticks."""
    short = [False] * 6 + [True] * 7 + [False] * 27
    assert play(POLICIES["bounded-wait"](TASK), TASK, market(short)).usd == pytest.approx(TASK.all_on_demand_usd)
    lasting = play(POLICIES["bounded-wait"](TASK), TASK, market([False] * 2 + [True] * 38))
    # Nine ticks on demand, five of them work; then a start and the rest on spot.
    assert lasting.usd == pytest.approx(9 + 0.3 * (4 + 15))


def test_our_policy_takes_no_spot_that_saves_nothing() -> None:
    task = replace(TASK, spot_usd_per_hour=TASK.on_demand_usd_per_hour)
    result = play(POLICIES["bounded-wait"](task), task, market([True, False] * 20))
    assert result.usd == pytest.approx(task.all_on_demand_usd)


def test_our_policy_goes_to_another_zone_where_one_is_lost() -> None:
    up = market([True] * 10 + [False] * 30, [False] * 5 + [True] * 35)
    result = play(POLICIES["bounded-wait"](TASK), TASK, up)
    assert result.preemptions == 1
    assert result.usd == pytest.approx(0.3 * (20 + 2 * 4))


def folder(tmp_path: Path, **zones: object) -> Path:
    for name, content in zones.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def test_a_folder_of_traces_is_read_zone_by_zone(tmp_path: Path) -> None:
    traces = read_spot_traces(
        folder(
            tmp_path,
            b={"metadata": {"gap_seconds": 2}, "data": [0, 4, 16, 16, 3]},
            a={"metadata": {"gap_seconds": 4}, "data": [1, 0, 1]},
        )
    )
    assert [trace.zone for trace in traces] == ["a", "b"]
    up = availability(traces, nodes=4, tick_s=1.0)
    assert up.shape == (10, 2)
    assert up[:, 0].tolist() == [True] * 4 + [False] * 4 + [True] * 2
    assert up[:, 1].tolist() == [False] * 2 + [True] * 6 + [False] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ({"data": [1]}, "lacks metadata.gap_seconds or data"),
        ({"metadata": {"gap_seconds": 0}, "data": [1]}, "must be seconds above 0, not 0"),
        ({"metadata": {"gap_seconds": 5}, "data": [1, -1]}, r"numbers of instances, not \[-1\]"),
        ({"metadata": {"gap_seconds": 5}, "data": []}, "numbers of instances"),
        ({"metadata": {"gap_seconds": 5}, "data": "11"}, "numbers of instances"),
        ({"metadata": {"gap_seconds": 5}, "data": 5}, "a list of numbers of instances, not 5"),
        ({"metadata": {"gap_seconds": 5}, "data": [0, 0]}, "no sample has an instance"),
    ],
)
def test_a_trace_that_is_wrong_is_refused_by_name(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_spot_traces(folder(tmp_path, zone=content))
    assert "zone.json" in str(caught.value)


def test_an_empty_folder_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no availability traces"):
        read_spot_traces(tmp_path)
    with pytest.raises(RequestError, match="can't be read: No such file"):
        read_spot_traces(tmp_path / "absent.json")


def test_policies_are_compared_from_each_start_under_each_deadline() -> None:
    trace = ZoneTrace(zone="a", gap_s=10.0, counts=(1, 0, 1, 1, 0, 1, 1, 1, 0, 1))
    rows = replay_spot(TASK, [trace], nodes=3, deadlines_s=[30.0, 40.0], every_s=20.0)
    assert [row.policy for row in rows] == 2 * [*POLICIES, OPTIMUM]
    assert {(row.deadline_s, row.starts) for row in rows} == {(30.0, 4), (40.0, 4)}
    assert all(row.missed == 0 for row in rows)
    assert all(row.share >= rows[index // 4 * 4 + 3].share for index, row in enumerate(rows))


def test_a_deadline_that_on_demand_alone_misses_or_the_traces_do_not_reach_is_refused() -> None:
    trace = ZoneTrace(zone="a", gap_s=10.0, counts=(1,) * 10)
    with pytest.raises(RequestError, match=r"deadline 22.0 s is too short: on demand alone the job needs 24.0 s"):
        replay_spot(TASK, [trace], nodes=1, deadlines_s=[22.0], every_s=20.0)
    with pytest.raises(RequestError, match=r"the traces last 1 min 40 s, less than deadline 3 min 20 s"):
        replay_spot(TASK, [trace], nodes=1, deadlines_s=[200.0], every_s=20.0)
