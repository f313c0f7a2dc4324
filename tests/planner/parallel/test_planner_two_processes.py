"""Two processes that make one search: the same answer, whatever becomes of the second one."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from functools import partial

import pytest

from factories.planning import AS_OF, data, example, make_space
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.planner import Wishes, search
from sailor_cloud.planner.parallel.two_processes import Team, together
from sailor_cloud.planner.seeds.blocks import Blocks
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.planner.space.layouts import Slot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process")


def nobody(share: float) -> None:
    pass


def planned(job: Job, wishes: Wishes) -> PlanDocument:
    prices, links, times = data()
    return search(job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), wishes=wishes)


def test_each_call_is_made_once_and_both_processes_know_what_all_returned(tmp_path) -> None:
    def make(number: int) -> int:
        with (tmp_path / f"{number}").open("x"):
            return number

    def both(team: Team) -> list[object]:
        first = team.shared([partial(make, number) for number in range(200)], nobody)
        return team.shared([lambda: (os.getpid(), tuple(first))] * 2, nobody)

    for processes in (1, 2):
        for path in tmp_path.iterdir():
            path.unlink()
        known = together(both, processes=processes)
        assert [found for _, found in known] == [tuple(range(200))] * 2


def test_both_processes_take_calls() -> None:
    pipes = os.pipe(), os.pipe()

    def meet(number: int) -> int:
        # Either call ends only once the other one has begun: one process alone would never end the first.
        os.write(pipes[number][1], b".")
        os.read(pipes[1 - number][0], 1)
        return os.getpid()

    def search_(team: Team) -> list[int]:
        return team.shared([partial(meet, number) for number in range(2)], nobody)

    try:
        first, second = together(search_, processes=2)
    finally:
        for end in (*pipes[0], *pipes[1]):
            os.close(end)
    assert first != second
    assert os.getpid() in (first, second)


def test_a_call_that_was_shared_out_shares_out_nothing() -> None:
    def inner(team: Team) -> list[int]:
        return team.shared([os.getpid] * 4, nobody)

    def outer(team: Team) -> list[list[int]]:
        return team.shared([partial(inner, team)] * 4, nobody)

    assert all(len(set(pids)) == 1 for pids in together(outer, processes=2))


def test_what_the_second_process_could_not_do_is_done_here() -> None:
    here = os.getpid()
    reading, writing = os.pipe()

    def find(number: int) -> int:
        if os.getpid() != here:
            os.write(writing, b".")
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 0 and not waited:
            # This process goes on once the other one has taken a call, and died of it.
            waited.append(os.read(reading, 1))
        return number

    def twice(team: Team) -> list[int]:
        return [*team.shared([partial(find, number) for number in range(50)], nobody), *team.shared([int] * 3, nobody)]

    waited: list[bytes] = []
    try:
        assert together(twice, processes=2) == [*range(50), 0, 0, 0]
    finally:
        os.close(reading)
        os.close(writing)
    assert waited


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_reaches_the_caller_and_leaves_no_process(processes: int) -> None:
    def fails() -> int:
        raise ValueError("no data")

    pids: set[int] = set()

    def in_a_call(team: Team) -> list[int]:
        pids.update(team.shared([os.getpid] * 100, nobody))
        return team.shared([int, fails, int], nobody)

    def between(team: Team) -> int:
        pids.update(team.shared([os.getpid] * 100, nobody))
        return fails()

    for failing in (in_a_call, between):
        with pytest.raises(ValueError, match="no data"):
            together(failing, processes=processes)
    for pid in pids - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_second_process_at_another_step_is_left_behind() -> None:
    def astray(team: Team) -> list[int]:
        found = [] if not team.leads else team.shared([partial(pow, number, 2) for number in range(5)], nobody)
        return found + team.shared([partial(pow, number, 3) for number in range(4)], nobody)

    def ended(team: Team) -> list[int]:
        return team.shared([partial(pow, number, 2) for number in range(5)], nobody) if team.leads else []

    assert together(astray, processes=2) == [0, 1, 4, 9, 16, 0, 1, 8, 27]
    assert together(ended, processes=2) == [0, 1, 4, 9, 16]


def test_a_killed_leader_takes_the_second_process_with_it() -> None:
    reading, writing = os.pipe()

    def lead() -> None:
        def dies(team: Team) -> list[int]:
            team.shared([int] * 9, nobody)
            if team.leads:
                # The other one waits for this one at the next step, or will.
                os.kill(os.getpid(), signal.SIGKILL)
            return team.shared([int] * 9, nobody)

        together(dies, processes=2)

    process = multiprocessing.get_context("fork").Process(target=lead)
    process.start()
    os.close(writing)
    process.join()
    with os.fdopen(reading, "rb") as end:
        # It ends when nobody has the other end any more.
        assert end.read() == b""
    assert process.exitcode == -signal.SIGKILL


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


def test_nothing_is_copied_where_nothing_can_be_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden() -> int:
        raise AssertionError("a second process")

    monkeypatch.setattr(os, "fork", forbidden)
    assert together(lambda team: team.shared([int], nobody), processes=2) == [0]
    with pytest.raises(AssertionError, match="a second process"):
        together(lambda team: team.shared([int, int], nobody), processes=2)


def test_where_no_process_can_be_copied_one_makes_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", too_many)
    before = len(os.listdir("/proc/self/fd"))
    assert together(lambda team: team.shared([os.getpid] * 3, nobody), processes=2) == [os.getpid()] * 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_calls_of_one_home_go_to_one_process() -> None:
    reading, writing = os.pipe()

    def meet(number: int) -> int:
        # The process whose own call this is waits until the other one has made both of its own.
        if number < 2:
            os.write(writing, b".")
        else:
            for _ in range(2):
                os.read(reading, 1)
        return os.getpid()

    def search_(team: Team) -> list[int]:
        return team.shared([partial(meet, number) for number in range(3)], nobody, homes=[7, 7, 4])

    try:
        first, second, _ = together(search_, processes=2)
    finally:
        os.close(reading)
        os.close(writing)
    assert first == second


@pytest.mark.parametrize("which", ["draft", "guess"])
def test_what_is_sent_is_what_arrives(which: str) -> None:
    space = make_space(example("gcp-a100-v100.yaml"))
    target = target_of(space.scenario.job)
    blocks = Blocks(space, target)
    guess = blocks.rate((1, 8)).guesses[0]
    sent = guess if which == "guess" else next(blocks.of(guess))
    arrived = pickle.loads(pickle.dumps(sent))
    assert arrived == sent
    assert type(arrived) is type(sent)
    if isinstance(arrived, Draft):
        assert arrived.order() == sent.order()
        assert {type(slot) for part in arrived.pipelines for slot in part.slots} == {Slot}
