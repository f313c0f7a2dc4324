"""All published planners by name."""

from __future__ import annotations

import difflib

from sailor_cloud.errors import RequestError
from sailor_cloud.planner.strategies.published.aceso import ACESO
from sailor_cloud.planner.strategies.published.amp import AMP
from sailor_cloud.planner.strategies.published.atlas import ATLAS
from sailor_cloud.planner.strategies.published.dtfm import DTFM
from sailor_cloud.planner.strategies.published.flashflex import FLASHFLEX
from sailor_cloud.planner.strategies.published.galvatron import GALVATRON
from sailor_cloud.planner.strategies.published.metis import METIS
from sailor_cloud.planner.strategies.published.oobleck import OOBLECK
from sailor_cloud.planner.strategies.published.piper import PIPER
from sailor_cloud.planner.strategies.published.sailor_paper import SAILOR_PAPER
from sailor_cloud.planner.strategies.published.varuna import VARUNA
from sailor_cloud.planner.strategies.strategy import Strategy

STRATEGIES: tuple[Strategy, ...] = (
    SAILOR_PAPER,
    METIS,
    FLASHFLEX,
    AMP,
    ATLAS,
    DTFM,
    VARUNA,
    PIPER,
    GALVATRON,
    ACESO,
    OOBLECK,
)


def strategy_named(name: str) -> Strategy:
    """Return a strategy. Raises RequestError that lists the known ones."""
    for strategy in STRATEGIES:
        if strategy.name == name:
            return strategy
    names = [strategy.name for strategy in STRATEGIES]
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
    raise RequestError(f"no strategy {name!r}; {hint}")
