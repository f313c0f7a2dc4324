"""How old a price may be. Only the price of an offer goes stale; example prices and a user's own never do."""

from __future__ import annotations

from datetime import date

from sailor_cloud.model.offer import Market, Offer

# The day of a price whose source says none and whose commit is not known: its age is unknown, and it is stale.
UNKNOWN_DAY = date(1970, 1, 1)
OLDEST_DAYS = {Market.ON_DEMAND: 90, Market.SPOT: 7}


def age_days(offer: Offer, as_of: date) -> int:
    """Return the age of an offer's price; a price known between two dates counts from the older one."""
    return (as_of - offer.as_of_from).days


def age_text(priced: date, days: int) -> str:
    """Return the age of a price of some day as people read it."""
    return "unknown" if priced == UNKNOWN_DAY else f"{days} d"


def is_stale(offer: Offer, as_of: date) -> bool:
    """Tell whether a price is too old to spend money on without being asked to."""
    if not offer.confidence.of_market:
        return False
    return age_days(offer, as_of) > OLDEST_DAYS[offer.market]
