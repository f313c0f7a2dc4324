"""What an error of a provider can mean, and the table in which a provider lists its own codes."""

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
