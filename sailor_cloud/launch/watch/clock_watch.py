"""Compares the controller's clock with the cloud's during a run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sailor_cloud.clock import Clock
from sailor_cloud.provision.cloud_clock import CloudClock

_INTERVAL_S = 300.0
# The clock was set, or the machine has slept: the clock advanced, and the monotonic counter did not.
_JUMP_S = 5.0


@dataclass(slots=True)
class ClockWatch:
    """Compares every five minutes, and as soon as the clock jumps."""

    clock: Clock
    poll_s: float = 1.0

    async def run(self) -> None:
        clock = self.clock
        if not isinstance(clock, CloudClock):
            return
        while True:
            wall, begun = clock.own.now(), clock.monotonic_s()
            while clock.monotonic_s() - begun < _INTERVAL_S:
                await asyncio.sleep(self.poll_s)
                if abs((clock.own.now() - wall).total_seconds() - (clock.monotonic_s() - begun)) > _JUMP_S:
                    break
            await asyncio.to_thread(clock.compare)
