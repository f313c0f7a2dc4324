"""Possible causes of a provider's error, the rules that recognize them, and the pauses between retries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# Messages of Go's HTTP client and the waiters of Terraform's plugin SDK about a timeout.
NO_ANSWER = (
    r"timeout while waiting for state to become|\bcontext deadline exceeded\b|Client\.Timeout exceeded"
    r"|\bi/o timeout\b|TLS handshake timeout|connection reset by peer|\bunexpected EOF\b"
)


class Cause(StrEnum):
    """The cause of an error, in order of importance if there are several."""

    CREDENTIALS = "credentials"
    POLICY = "policy"
    QUOTA = "quota"
    NOT_SOLD = "not sold"
    STOCKOUT = "stockout"
    THROTTLED = "throttled"
    EXISTS = "exists"
    SERVER = "server"
    SLOW = "slow"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern in an error's text and its meaning; named groups `quota`, `limit`, `region` and `policy` are kept."""

    cause: Cause
    pattern: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGuide:
    """How to read a provider's errors, and what its users can do about them.

    The first matching rule decides. `login` says how to get credentials. `quota_page` returns the page to raise a quota
    in a region. `allowed_by` says, by policy, what a job can change so that an organization allows it.
    """

    rules: tuple[Rule, ...] = ()
    login: str = "log in"
    quota_page: Callable[[str, str], str] = lambda quota, region: "your provider"
    allowed_by: Mapping[str, str] = field(default_factory=dict)


Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds that grow by `factor` up to `longest_s`, for at most `attempts` attempts."""

    first_s: float = 5.0
    factor: float = 2.0
    longest_s: float = 60.0
    attempts: int = 6

    def pause_s(self, failed: int) -> float | None:
        """Return the pause after this many failed attempts, or None if there were enough."""
        if failed >= self.attempts:
            return None
        return min(self.first_s * self.factor ** (failed - 1), self.longest_s)
