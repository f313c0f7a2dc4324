"""What an error of a provider can mean, its table of codes, and when a request is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# How Go's HTTP client and the waiters of Terraform's plugin SDK say that nobody answered in time.
NO_ANSWER = (
    r"timeout while waiting for state to become|\bcontext deadline exceeded\b|Client\.Timeout exceeded"
    r"|\bi/o timeout\b|TLS handshake timeout|connection reset by peer|\bunexpected EOF\b"
)


class Cause(StrEnum):
    """What is behind an error, in the order of what matters most when there are several."""

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
    """A pattern in an error's text and what it means; named groups `quota`, `limit`, `region` and `policy` are kept."""

    cause: Cause
    pattern: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGuide:
    """How a provider's errors are read, and what its users can do about them.

    The first rule that fits decides. `login` says how to get credentials; `quota_page` returns where more of a quota
    in a region is asked for; `allowed_by` says, by policy, what a job can change so that an organization allows it.
    """

    rules: tuple[Rule, ...] = ()
    login: str = "log in"
    quota_page: Callable[[str, str], str] = lambda quota, region: "your provider"
    allowed_by: Mapping[str, str] = field(default_factory=dict)


Pause = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds grow by `factor` up to `longest_s`; after `attempts` tries it is enough."""

    first_s: float = 5.0
    factor: float = 2.0
    longest_s: float = 60.0
    attempts: int = 6

    def pause_s(self, failed: int) -> float | None:
        """Return how long to wait after so many failed tries, or None when there were enough."""
        if failed >= self.attempts:
            return None
        return min(self.first_s * self.factor ** (failed - 1), self.longest_s)
