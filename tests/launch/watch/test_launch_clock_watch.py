"""While a run continues, the clock is compared again when it jumps, and what is found is told and journaled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from factories.quick_runs import Notes
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.start import _report_clock_offset
from sailor_cloud.launch.watch.clock_watch import ClockWatch
from sailor_cloud.provision.cloud_clock import CloudClock
from sailor_cloud.provision.live_resources import Scopes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, read

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Counted(CloudClock):
    """Counts comparisons; the cloud's clock stands still at NOW."""

    compared = 0

    def compare(self) -> None:
        self.compared += 1
        super().compare()

    def _ahead_of(self, url: str) -> timedelta | None:
        return self.own.now() - NOW


async def watched(clock: Counted, seconds: float) -> None:
    task = asyncio.ensure_future(ClockWatch(clock, poll_s=0.001).run())
    await asyncio.sleep(seconds)
    task.cancel()


def made(own: FixedClock) -> Counted:
    return Counted(own, Scopes(), lambda text, ahead_s: None)


def test_a_steady_clock_is_compared_every_five_minutes_only() -> None:
    own = FixedClock(NOW)
    clock = made(own)
    asyncio.run(watched(clock, 0.05))
    assert clock.compared == 0
    own.elapsed_s = 301.0

    async def five_minutes_on() -> None:
        task = asyncio.ensure_future(ClockWatch(clock, poll_s=0.001).run())
        await asyncio.sleep(0.01)
        own.elapsed_s += 301.0
        own.instant += timedelta(seconds=301.0)
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(five_minutes_on())
    assert clock.compared == 1


def test_a_clock_that_jumps_is_compared_at_once() -> None:
    own = FixedClock(NOW)
    clock = made(own)

    async def jumps() -> None:
        task = asyncio.ensure_future(ClockWatch(clock, poll_s=0.001).run())
        await asyncio.sleep(0.01)
        own.instant += timedelta(hours=1)
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(jumps())
    assert clock.compared == 1


def test_later_findings_are_reported_and_journaled(tmp_path: Path) -> None:
    folder, notes = RunFolder.create("tiny-20261121-000000-a1b2", root=tmp_path), Notes()
    own = FixedClock(NOW)
    clock = made(own)
    _report_clock_offset(folder, clock, notes, [("this machine's clock is 40 s ahead", 40.0)])
    clock.on_change("this machine's clock is 3600 s behind", -3600.0)
    assert notes.lines == ["this machine's clock is 40 s ahead", "this machine's clock is 3600 s behind"]
    told = [entry.data["ahead_s"] for entry in read(folder.journal_file) if entry.event is Event.CLOCK_COMPARED]
    assert told == [40.0, -3600.0]
