"""Which leftovers `reap` takes for whose, on paper: the cloud is a list in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_runs import small_document
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup import reap
from sailor_cloud.provision.cleanup.reap import (
    FoundLeftovers,
    deletion_problems,
    find_leftovers,
    remove_foreign,
    scopes_to_sweep,
)
from sailor_cloud.provision.errors.rules import Backoff
from sailor_cloud.provision.live_resources import HOLDS_OBJECTS, CloudSweep, LiveResource, Scope, Scopes, SearchedPlace
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal

GCP = Provider("gcp")
BEGUN = datetime(2026, 11, 24, 10, tzinfo=UTC)
HERE, ELSEWHERE = "mine-20261124-100000-a1b2", "theirs-20261124-100000-ffff"
PLACE = Scope(provider="gcp", kind="project", name="my-project")
HOUR = timedelta(hours=1)


def live(run_id: str, name: str = "sc-n0", kind: str = "google_compute_instance", **more: Any) -> LiveResource:
    made = LiveResource(
        provider=GCP, region="us-central1", type=kind, name=name, run_id=run_id, project="my-project", node="n0"
    )
    return replace(made, **more)


@dataclass(slots=True)
class Paper:
    """What clouds have, what they refuse, and how they were asked."""

    alive: list[LiveResource] = field(default_factory=list)
    rights: list[LiveResource] = field(default_factory=list)
    here: dict[RunFolder, LiveResource] = field(default_factory=dict)
    unsure: tuple[LiveResource, ...] = ()
    problem: str = ""
    refuses: int = 0
    silent: bool = False
    pauses: list[float] = field(default_factory=list)
    swept: list[tuple[Scopes, str | None]] = field(default_factory=list)

    def sweep(self, scopes: Scopes, *, run_id: str | None = None) -> CloudSweep:
        self.swept.append((scopes, run_id))
        found = tuple(one for one in self.alive if run_id in (None, one.run_id))
        asked = (
            () if self.silent else (SearchedPlace(scope=PLACE, kind="google_compute_instance", problem=self.problem),)
        )
        return CloudSweep(found=found, searched=asked, unconfirmed=self.unsure)

    def on_this_machine(self, folder: RunFolder) -> CloudSweep:
        return CloudSweep(found=tuple(one for run, one in self.here.items() if run.run_id == folder.run_id))

    def untagged(self, scopes: Scopes, *, run_id: str) -> CloudSweep:
        return CloudSweep(found=tuple(one for one in self.rights if one.run_id == run_id and scopes))

    def remove(self, found: Iterable[LiveResource]) -> tuple[str, ...]:
        if self.refuses > 0:
            self.refuses -= 1
            return ("it is still in use",)
        names = {one.name for one in found}
        self.alive = [one for one in self.alive if one.name not in names]
        return ()


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    made = Paper()
    monkeypatch.setattr(reap, "sweep_scopes", made.sweep)
    monkeypatch.setattr(reap, "sweep_untagged", made.untagged)
    monkeypatch.setattr(reap, "sweep_this_machine", made.on_this_machine)
    monkeypatch.setattr(reap, "remove_from", made.remove)
    return made


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of this machine that its controller left an hour ago."""
    made = RunFolder.create(HERE, root=tmp_path)
    made.write_document(small_document(GCP))
    journal = Journal.of(made, FixedClock(BEGUN))
    journal.append(Event.RUN_CREATED, job="mine")
    journal.append(Event.PROVISION_STARTED, gcp_projects=["my-project"])
    return made


def found(*folders: RunFolder, hours: float = 1.0, **options: Any) -> FoundLeftovers:
    return find_leftovers(folders, clock=FixedClock(BEGUN + hours * HOUR), **options)


def test_what_a_dead_controller_of_here_left_is_reapable_and_a_living_ones_is_not(
    folder: RunFolder, paper: Paper
) -> None:
    paper.alive = [live(HERE, owner="me", expires="2026-11-24t20-00-00z")]
    (leftover,) = found(folder).reapable
    assert (leftover.run_id, leftover.folder, leftover.owner) == (HERE, folder, "me")
    assert leftover.why == (
        "no controller has worked on it since 2026-11-24 10:00 UTC; "
        f"'sailor-cloud resume {HERE}' would continue with it"
    )
    with folder.lock():
        (kept,) = found(folder).live
        assert found(folder).reapable == ()
    assert kept.why.startswith("process ")
    assert paper.swept[0] == (scopes_to_sweep([folder], Scopes()), None)


def test_leftovers_younger_than_requested_are_left(folder: RunFolder, paper: Paper) -> None:
    paper.alive = [live(HERE)]
    assert found(folder, older_than=HOUR, hours=0.99).live[0].why.endswith("which is less than --older-than")
    assert found(folder, older_than=HOUR, hours=1.0).reapable


def test_leftovers_of_a_torn_down_run_are_reapable_immediately(folder: RunFolder, paper: Paper) -> None:
    Journal.of(folder, FixedClock(BEGUN)).append(Event.TORN_DOWN)
    paper.alive, paper.rights = [live(HERE)], [live(HERE, "a right")]
    (leftover,) = found(folder, older_than=9 * HOUR).reapable
    assert leftover.why == "was torn down, and this is left"
    # Its rights, which carry no tag, were gone with it.
    assert [one.name for one in leftover.resources] == ["sc-n0"]


def test_rights_that_carry_no_tag_are_found_by_the_runs_own_folder(folder: RunFolder, paper: Paper) -> None:
    paper.rights = [live(HERE, "a right")]
    (leftover,) = found(folder).reapable
    assert [one.name for one in leftover.resources] == ["a right"]


@pytest.mark.parametrize(
    ("expires", "hours", "older_than", "reapable", "why"),
    [
        ("2026-11-24t12-00-00z", 1.0, None, False, "may be a live run of another machine, until 2026-11-24 12:00 UTC"),
        ("2026-11-24t12-00-00z", 2.0, None, False, "until 2026-11-24 12:00 UTC"),
        ("2026-11-24t12-00-00z", 2.1, None, True, "of another machine, expired 2026-11-24 12:00 UTC"),
        ("2026-11-24t12-00-00z", 1.0, HOUR, True, "of another machine, begun 2026-11-24 10:00 UTC"),
        ("2026-11-24t12-00-00z", 0.9, HOUR, False, "until 2026-11-24 12:00 UTC"),
        ("", 99.0, None, False, "may be a live run of another machine, without an expiry"),
        ("garbage", 99.0, None, False, "without an expiry"),
    ],
)
def test_a_run_of_another_machine_is_not_reaped_before_it_expires(
    paper: Paper, expires: str, hours: float, older_than: timedelta | None, reapable: bool, why: str
) -> None:
    earlier = "2026-11-24t11-00-00z" if expires.startswith("2026") else ""
    paper.alive = [live(ELSEWHERE, expires=earlier), live(ELSEWHERE, "sc-n1", expires=expires, owner="them")]
    told = found(hours=hours, older_than=older_than, scopes=Scopes({PLACE}))
    (leftover,) = told.reapable if reapable else told.live
    assert len(told.reapable) + len(told.live) == 1
    assert why in leftover.why
    assert (leftover.folder, leftover.owner, len(leftover.resources)) == (None, "them", 2)
    assert paper.swept == [(Scopes({PLACE}), None)]


def test_a_bucket_that_holds_objects_is_left_with_the_command_that_deletes_it(folder: RunFolder, paper: Paper) -> None:
    bucket = live(ELSEWHERE, "sc-data", "google_storage_bucket", node="", detail=HOLDS_OBJECTS)
    paper.alive = [bucket, live(ELSEWHERE, expires="2026-11-24t11-00-00z"), replace(bucket, name="sc-e", detail="")]
    told = found(folder, hours=9.0)
    (kept,) = told.live
    assert kept.resources == (bucket,)
    assert "gcloud storage rm --recursive gs://sc-data" in kept.why
    (leftover,) = told.reapable
    assert [one.name for one in leftover.resources] == ["sc-n0", "sc-e"]


def test_capacity_that_nobody_can_cancel_is_left_with_its_end(paper: Paper) -> None:
    block = live(ELSEWHERE, "cr-1", "aws_ec2_capacity_block_reservation", provider="aws", ends="2026-11-25 11:30")
    paper.alive = [block, replace(block, run_id=HERE, ends="")]
    told = found(hours=99.0)
    assert told.reapable == ()
    assert [(one.run_id, one.why) for one in told.live] == [
        (HERE, "is paid for, can't be cancelled and ends by itself"),
        (ELSEWHERE, "is paid for, can't be cancelled and ends by itself at 2026-11-25 11:30"),
    ]


def test_resources_here_and_on_clouds_belong_to_one_run(folder: RunFolder, paper: Paper) -> None:
    paper.alive, paper.here = [live(HERE)], {folder: live(HERE, "n9", provider="local")}
    (leftover,) = found(folder).reapable
    assert [one.name for one in leftover.resources] == ["sc-n0", "n9"]
    paper.alive = []
    assert [one.name for one in found(folder).reapable[0].resources] == ["n9"]
    # This machine always answers, so that it need not be asked by name.
    assert deletion_problems(found(folder).reapable[0]) == ("still there: google_compute_instance n9",)
    leftover = found(folder).reapable[0]
    paper.here, paper.silent = {}, True
    assert deletion_problems(leftover) == ()


def test_resources_on_a_machine_that_does_not_answer_are_reported_and_not_deleted(paper: Paper) -> None:
    quiet = live(ELSEWHERE, "job-7", silent="host01 does not answer")
    paper.alive, paper.unsure = [live(ELSEWHERE, expires="2026-11-24t11-00-00z")], (quiet, quiet)
    (leftover,) = found(hours=9.0, scopes=Scopes({PLACE})).reapable
    assert [one.name for one in leftover.resources] == ["sc-n0", "job-7", "job-7"]
    asked: list[list[str]] = []
    remove = paper.remove

    def noted(resources: Iterable[LiveResource]) -> tuple[str, ...]:
        listed = tuple(resources)
        asked.append([one.name for one in listed])
        return remove(listed)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reap, "remove_from", noted)
        told = remove_foreign(leftover, pause=paper.pauses.append)
    assert (asked, paper.pauses) == ([["sc-n0"]], [])
    doubt = "not confirmed as gone: google_compute_instance job-7 of node n0: host01 does not answer"
    assert told == deletion_problems(leftover) == (doubt,)


def test_leftovers_are_looked_for_again_where_they_were_found() -> None:
    other = Scope(provider="aws", kind="region", name="us-east-1")
    instance = live(ELSEWHERE, "i-1", "aws_instance", provider="aws", region="us-east-1")
    assert reap.scopes_of_resources([live(ELSEWHERE)]) == {PLACE}
    assert reap.scopes_of_resources([instance]) == {other}
    assert reap.scopes_of_resources([live(ELSEWHERE), instance]) == {PLACE, other}


def test_problems_of_searches_are_reported_and_progress_too(
    folder: RunFolder, paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper.problem = "the project can't be asked"
    asked = (SearchedPlace(scope=PLACE, kind="google_storage_bucket_iam_member", problem="rights can't be listed"),)
    monkeypatch.setattr(reap, "sweep_untagged", lambda scopes, run_id: CloudSweep(found=(), searched=asked))
    assert found(folder).problems == ("the project can't be asked", "rights can't be listed")
    monkeypatch.setattr(reap, "sweep_untagged", lambda scopes, run_id: CloudSweep(found=()))
    steps: list[tuple[int, int]] = []
    told = found(folder, progress=lambda done, of: steps.append((done, of)))
    assert told.problems == ("the project can't be asked",)
    assert steps == [(0, 2), (1, 2)]


def stranger(paper: Paper) -> Any:
    paper.alive = [live(ELSEWHERE, expires="2026-11-24t11-00-00z")]
    (leftover,) = found(hours=9.0, scopes=Scopes({PLACE})).reapable
    return leftover


def test_leftovers_of_another_machine_are_deleted_repeatedly_until_a_search_finds_nothing(
    folder: RunFolder, paper: Paper
) -> None:
    leftover = stranger(paper)
    # This machine has runs, too, and none of them is the stranger's.
    paper.here = {folder: live(HERE, "n9", provider="local")}
    paper.refuses = 2
    assert remove_foreign(leftover, pause=paper.pauses.append) == ()
    assert (paper.alive, paper.pauses) == ([], [5.0, 10.0])
    assert paper.swept[-1][1] == ELSEWHERE
    assert deletion_problems(leftover) == ()


def test_failed_deletions_and_searches_are_reported(paper: Paper) -> None:
    leftover = stranger(paper)
    paper.refuses = 99
    told = remove_foreign(leftover, pause=paper.pauses.append, backoff=Backoff(first_s=1.0, factor=3.0, attempts=3))
    assert told == ("it is still in use", "still there: google_compute_instance sc-n0")
    assert paper.pauses == [1.0, 3.0]
    paper.alive, paper.problem = [], "no answer"
    assert deletion_problems(leftover) == ("no answer",)
    paper.pauses, paper.refuses = [], 0
    assert remove_foreign(leftover, pause=paper.pauses.append, backoff=Backoff(first_s=1.0, attempts=2)) == (
        "no answer",
    )
    assert paper.pauses == [1.0]
    paper.problem, paper.silent = "", True
    assert deletion_problems(leftover) == ("gcp was not asked",)
