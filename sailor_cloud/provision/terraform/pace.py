"""Limits on concurrent requests to a cloud: resources within one Terraform root, and roots in parallel."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted

# Terraform's default parallelism, and the minimum for a cloud that throttles.
DEFAULT_AT_ONCE = 10
_FEWEST_AT_ONCE = 5

_A = TypeVar("_A")
_T = TypeVar("_T")


@dataclass(slots=True)
class Pace:
    """How many resources Terraform creates or deletes concurrently in one root; a provider's roots share one limit."""

    max_concurrent: int = DEFAULT_AT_ONCE
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def slow_down(self) -> None:
        """Halve the number of concurrent requests, because the cloud throttles."""
        with self._mutex:
            self.max_concurrent = max(min(_FEWEST_AT_ONCE, self.max_concurrent), self.max_concurrent // 2)


def paces(places: Iterable[tuple[str, str]]) -> dict[str, Pace]:
    """Return the pace of each provider, by its rate limits and its number of concurrent regions.

    `places` are providers and regions.
    """
    regions = Counter(provider for provider, _ in set(places))
    found = {}
    for provider, number in regions.items():
        sold = sold_by(Provider(provider))
        share = sold.nodes_at_once // number if sold.shared_rate else sold.nodes_at_once
        found[provider] = Pace(max(DEFAULT_AT_ONCE, share))
    return found


def map_concurrently(work: Callable[[_A], _T], things: Sequence[_A], *, most: int = 16) -> list[_T]:
    """Process many things, a few at a time, and return the results in order."""
    if len(things) < 2:
        return [work(thing) for thing in things]
    with ThreadPoolExecutor(min(most, len(things))) as pool:
        contexts = [copy_context() for _ in things]
        return list(pool.map(lambda context, thing: context.run(work, thing), contexts, things))


def run_concurrently(calls: Sequence[Callable[[], _T]], interrupt: Interrupt) -> list[_T]:
    """Run each call in its own thread and return the values in order, once all have ended.

    A Ctrl-C counts as a request to interrupt, which reaches all of them; a second one leaves them to end alone. Raises
    the first call's error, but an interruption before any other.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    values: dict[int, _T] = {}
    errors: dict[int, BaseException] = {}
    ended = [threading.Event() for _ in calls]

    def work(number: int, call: Callable[[], _T]) -> None:
        try:
            values[number] = call()
        except BaseException as error:
            errors[number] = error
        finally:
            ended[number].set()

    # Daemons, so that a process whose user does not wait for them can end.
    for numbered in enumerate(calls):
        threading.Thread(target=copy_context().run, args=(work, *numbered), daemon=True).start()
    for end in ended:
        _wait(end, interrupt)
    if errors:
        raise errors[min(errors, key=lambda number: (not isinstance(errors[number], ProvisionInterrupted), number))]
    return [values[number] for number in range(len(calls))]


def _wait(end: threading.Event, interrupt: Interrupt) -> None:
    # Not Thread.join: after its KeyboardInterrupt, a running thread counts as dead.
    while not end.is_set():
        try:
            end.wait()
        except KeyboardInterrupt:
            if interrupt.requested:
                raise
            interrupt.request()
