from __future__ import annotations

from pathlib import Path

import pytest

from factories.quick_search import JOB, QuickSearch, job, search
from sailor_cloud import resources
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import at_start, replay
from sailor_cloud.launch.simulation.trace_file import read_trace
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.run.progress import Replayed
from sailor_cloud.workload import decoder

A, B = "us-central1-a", "us-central1-b"
FULL = {Place(A, "A100-40"): 4, Place(B, "A100-40"): 4, Place(A, "V100-16"): 6, Place(B, "V100-16"): 6}


def trace(*changes: tuple[float, dict[Place, int]]) -> Trace:
    """Everything the job allows at first, then what changes at so many seconds."""
    rows, now = [FULL], FULL
    for _, change in changes:
        now = {**now, **change}
        rows.append(now)
    return Trace(
        times_s=(0.0, *(at_s for at_s, _ in changes)),
        devices={place: tuple(row[place] for row in rows) for place in FULL},
    )


def replayed(market: Trace, policy: Policy = Policy.BEST, **limits: float) -> Replayed:
    document = search(job(**limits))
    return replay(document, market, decoder=decoder(document.job.model), search=QuickSearch(), policy=policy)


def test_without_disturbance_a_replay_takes_what_the_plan_says() -> None:
    result = replayed(trace())
    assert (result.ending, result.steps, result.steps_again, result.generations) == ("completed", 3000, 0, 1)
    # Eight nodes at 2.0 s: start-up of 420 s, 6000 s of training, removal of 120 s, seen a look later.
    assert result.seconds == pytest.approx(420 + 6000 + 120, abs=60)
    assert result.downtime_s == pytest.approx(result.seconds - 6000, abs=1)


def test_a_lost_zone_is_planned_around_while_waiting_for_it_costs_time_and_money() -> None:
    gone = {Place(A, "A100-40"): 0}
    market = trace((3000.0, gone), (3000.0 + 2 * 3600, FULL))
    ours, waiting = replayed(market), replayed(market, Policy.NEVER)
    assert ours.ending == "completed"
    assert ours.preemptions == 4
    assert waiting.ending == "completed"
    assert waiting.seconds > ours.seconds + 1800
    assert waiting.usd > ours.usd
    always = replayed(market, Policy.ALWAYS)
    assert always.ending == "completed"
    assert always.usd > ours.usd, "another plan is bought where what is left would do"


def test_a_run_grows_back_when_capacity_returns() -> None:
    small = {Place(A, "A100-40"): 1, Place(B, "A100-40"): 1, Place(A, "V100-16"): 0, Place(B, "V100-16"): 0}
    short = replayed(trace((1800.0, small), (3600.0, FULL)), budget_usd=200.0, deadline=36000.0)
    long = replayed(trace((1800.0, small)), budget_usd=200.0, deadline=36000.0)
    assert short.ending == "completed"
    assert short.generations > long.generations
    assert short.seconds < long.seconds


def test_work_lost_is_less_than_a_checkpoint_interval() -> None:
    result = replayed(trace((3000.0, {Place(A, "A100-40"): 3})))
    assert result.ending == "completed"
    assert 0 < result.steps_again <= 600 / 2.0


def test_the_same_trace_gives_the_same_result() -> None:
    market = trace((2000.0, {Place(B, "A100-40"): 2}), (5000.0, FULL))
    assert replayed(market) == replayed(market)


def test_a_job_begins_with_what_the_trace_has() -> None:
    none = Trace(times_s=(0.0,), devices={Place(A, "A100-40"): (3,)})
    limited = at_start(parse_job(JOB), none)
    assert limited is not None
    (entry,) = limited.resources
    assert (entry.zones, entry.accelerators) == ((A,), {"A100-40": 3})
    assert at_start(parse_job(JOB), Trace(times_s=(0.0, 9.0), devices={Place(A, "A100-40"): (0, 3)})) is None
    with pytest.raises(
        RequestError, match="the trace names T4-16 in mars-1, and the job allows A100-40 in us-central1-a"
    ):
        at_start(parse_job(JOB), Trace(times_s=(0.0,), devices={Place("mars-1", "T4-16"): (3,)}))


def test_traces_are_read_in_both_forms(tmp_path: Path) -> None:
    own, other = tmp_path / "own.csv", tmp_path / "other.csv"
    own.write_text("# a note\nat_s,A100-40_us-central1-a\n0,32\n123.5,80\n")
    other.write_text(",Timestamp,A100-40_us-central1-a\n0,1712574014.0,32\n1,1712574137.5,80")
    assert read_trace(own) == read_trace(other)
    market = read_trace(own)
    place = Place(A, "A100-40")
    assert [market.available(place, at_s) for at_s in (0.0, 123.4, 123.5, 1e6)] == [32, 32, 80, 80]
    assert market.available(Place(B, "A100-40"), 0.0) == 0


def test_faults_of_a_trace_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("at_s,A100,A100-40_us-central1-a\n0,1,2\n0,1,2\n5,1,-3\n6,1,inf\n7,1\nnoon,1,2\n")
    with pytest.raises(RequestError) as error:
        read_trace(path)
    text = str(error.value)
    assert "column 'A100' names no place" in text
    assert "its time is not later" in text
    assert "'-3' is not a number of devices" in text
    assert "row 4: 'inf' is not a number of devices" in text
    assert "row 5: has 2 values, the header has 3 columns" in text
    assert "row 6: 'noon' is neither a number of seconds nor an ISO 8601 time" in text


@pytest.mark.parametrize("name", ["evening-rush", "lost-zone", "slow-growth"])
def test_shipped_traces_can_be_read(name: str) -> None:
    market = read_trace(resources.data_root() / "examples" / "traces" / f"{name}.csv")
    assert len(market.times_s) > 2
    assert set(market.places) == set(FULL)
