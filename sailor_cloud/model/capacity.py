"""Capacity other than spot and on-demand: the entries of a job's `cloud.capacity`; see docs/capacity.md."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from sailor_cloud.model.duration import Duration
from sailor_cloud.model.offer import Market, Terms
from sailor_cloud.model.provider import Provider
from sailor_cloud.units import SECONDS_PER_HOUR, duration_text

# Compute Engine ends flex-start VMs after seven days (cloud.google.com/compute/docs/instances/about-flex-start-vms,
# looked up 2026-11-24).
FLEX_START_MOST_S = 7 * 24 * SECONDS_PER_HOUR
_WITH_TERMS = tuple(market for market in Market if market.has_terms)


def _with_terms(market: Market) -> Market:
    if not market.has_terms:
        raise ValueError(f"must be {', '.join(_WITH_TERMS)}; prices of spot and on-demand are in the catalog")
    return market


class Capacity(BaseModel):
    """Nodes of one type in one zone. Plans refer to the entry by `name`.

    `id`: a reservation that the account has, which is used but never bought or cancelled: its id on AWS, its name on
    Google Cloud. Without an id, the run buys it. `usd` is the whole price of a block with all its nodes, `usd_per_hour`
    that of one node, `as_of` the day of the price. Without a price, the on-demand price counts, or 0 for a block that
    is already paid for. `wait`: how long nodes take to arrive after the request. `min_duration` is paid for in any
    case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    market: Annotated[Market, AfterValidator(_with_terms)]
    provider: Provider
    zone: str
    instance_type: str
    nodes: int = Field(gt=0)
    id: str | None = Field(default=None, pattern=r"^[a-z][a-zA-Z0-9/-]+$")
    usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    usd_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    as_of: date | None = None
    starts_at: AwareDatetime | None = None
    ends_at: AwareDatetime | None = None
    wait: Duration | None = None
    min_duration: Duration | None = None
    max_duration: Duration | None = None

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.starts_at is not None and self.ends_at is not None and self.ends_at <= self.starts_at:
            raise ValueError(f"ends_at {self.ends_at:%Y-%m-%d %H:%M} is not after starts_at")
        if self.usd is not None and self.usd_per_hour is not None:
            raise ValueError("give usd or usd_per_hour, not both")
        if self.as_of is None and (self.usd is not None or self.usd_per_hour is not None):
            raise ValueError("a price needs as_of, the day on which it was true")
        if self.market is Market.CAPACITY_BLOCK and (self.starts_at is None or self.ends_at is None):
            raise ValueError("a capacity block needs starts_at and ends_at")
        if self.market is Market.CAPACITY_BLOCK and self.id is None and self.usd is None:
            raise ValueError("a capacity block that is to be bought needs usd, its whole price")
        if self.market is not Market.CAPACITY_BLOCK and self.usd is not None:
            raise ValueError(f"a {self.market} is paid for by the hour: give usd_per_hour")
        if self.market is Market.FLEX_START and self.id is not None:
            raise ValueError("flex-start VMs are asked for when a run begins, so no reservation has an id")
        if self.market is Market.FLEX_START and (self.max_duration or 0.0) > FLEX_START_MOST_S:
            asked = duration_text(self.max_duration or 0.0)
            raise ValueError(f"max_duration is {asked}; Compute Engine ends flex-start VMs after seven days (7d)")
        if self.market is Market.FLEX_START and self.ends_at is not None:
            raise ValueError("flex-start VMs end by max_duration, counted from their start: give that, not ends_at")
        if self.market is Market.RESERVATION and self.id is None and self.min_duration:
            raise ValueError("a reservation that the run buys is paid for until it is cancelled: give no min_duration")
        if self.market is Market.RESERVATION and self.id is None and (self.starts_at or self.ends_at):
            raise ValueError("a reservation that the run buys begins at once and ends with it: give neither time")
        return self

    @property
    def bought_separately(self) -> bool:
        """Whether the capacity is bought separately before its nodes."""
        return self.id is None and self.market is not Market.FLEX_START

    @property
    def terms(self) -> Terms:
        whole_s = (self.ends_at - self.starts_at).total_seconds() if self.starts_at and self.ends_at else 0.0
        block = self.market is Market.CAPACITY_BLOCK
        flex = FLEX_START_MOST_S if self.market is Market.FLEX_START else None
        return Terms(
            name=self.name,
            nodes=self.nodes,
            held=self.id or "",
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            wait_s=self.wait or 0.0,
            least_s=whole_s if block else self.min_duration or 0.0,
            most_s=self.max_duration or flex,
        )

    @property
    def own_usd_per_hour(self) -> float | None:
        """The entry's USD per hour of one node; None if the on-demand price counts."""
        if self.market is not Market.CAPACITY_BLOCK:
            return self.usd_per_hour
        if self.usd is None:
            return self.usd_per_hour or 0.0
        return self.usd / self.nodes / self.terms.least_s * SECONDS_PER_HOUR
