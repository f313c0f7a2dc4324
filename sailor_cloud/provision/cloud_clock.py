"""The controller's clock, corrected by the Date of the clouds' answers: what is bought ends by the clouds' time."""

from __future__ import annotations

import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.provision import providers
from sailor_cloud.provision.live_resources import Scopes, of_provider

logger = logging.getLogger(__name__)
TOLERANCE_S = 30.0
_TIMEOUT_S = 5.0
# A Date has whole seconds, and was written while the answer was in transit.
_HALF = timedelta(seconds=0.5)


class CloudClock:
    """Another clock, shifted to the clouds' time if it is more than 30 s off; `compare` measures that.

    `on_change` gets a message, and the seconds by which the other clock is ahead of the clouds'.
    """

    def __init__(self, own: Clock, places: Scopes, on_change: Callable[[str, float], None]) -> None:
        self.own = own
        self.on_change = on_change
        self._places = places
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        return self.own.now() - self._ahead

    def monotonic_s(self) -> float:
        return self.own.monotonic_s()

    def compare(self) -> None:
        """Measure the offset from one cloud's time; without an answer, nothing changes."""
        ahead = next(
            (ahead for url in time_servers(self._places) if (ahead := self._offset_from(url)) is not None), None
        )
        if ahead is None or abs(ahead - self._ahead).total_seconds() <= TOLERANCE_S:
            return
        seconds = ahead.total_seconds()
        self._ahead = ahead if abs(seconds) > TOLERANCE_S else timedelta(0)
        offset = f"this machine's clock is {abs(seconds):.0f} s {'ahead of' if seconds > 0 else 'behind'} the cloud's"
        counts = "the cloud's is used" if self._ahead else "it is right again and used"
        self.on_change(f"{offset}; {counts}", seconds)

    def _offset_from(self, url: str) -> timedelta | None:
        begun, before = self.own.monotonic_s(), self.own.now()
        date = _date_of(url)
        took = self.own.monotonic_s() - begun
        # A slow answer gives no usable time, nor does a clock that jumped meanwhile.
        if date is None or took > _TIMEOUT_S:
            return None
        return before + timedelta(seconds=took / 2) - (date + _HALF)


def by_cloud(own: Clock, places: Scopes, on_change: Callable[[str, float], None]) -> Clock:
    """Return a clock with the time of these places' clouds; without places, the clock itself."""
    if not places:
        return own
    clock = CloudClock(own, places, on_change)
    clock.compare()
    return clock


def time_servers(places: Scopes) -> list[str]:
    """Return an address of each cloud that answers anybody."""
    found = []
    for provider, machine_provider in providers.all_providers():
        mine = of_provider(places, provider)
        try:
            url = machine_provider.time_server(mine) if mine else ""
        except Exception as error:
            # Other requests report a wrong profile or region; it must not prevent a teardown.
            logger.debug("no time from %s: %s", provider, error)
            continue
        if url:
            found.append(url)
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, whose targets may return old cached answers."""

    def redirect_request(self, *details: Any, **more: Any) -> None:
        return None


def _date_of(url: str) -> datetime | None:
    """Return the Date of any answer; None if there is none."""
    request = urllib.request.Request(url, method="HEAD")
    try:
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=_TIMEOUT_S) as answer:
                headers = answer.headers
        except urllib.error.HTTPError as error:
            headers = error.headers
        date = parsedate_to_datetime(headers["Date"])
    except (OSError, http.client.HTTPException, ValueError, TypeError) as error:
        logger.debug("no time from %s: %s", url, error)
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
