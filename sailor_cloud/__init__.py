"""Plans, buys, runs and tears down heterogeneous GPU training under a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sailor_cloud.api import compare, plan, simulate, simulate_layout, up

__all__ = ["compare", "plan", "simulate", "simulate_layout", "up"]


def __getattr__(name: str) -> Any:
    # The functions are imported when they are first used, so that the command line answers quickly.
    if name in __all__:
        from sailor_cloud import api

        return getattr(api, name)
    raise AttributeError(f"module 'sailor_cloud' has no attribute {name!r}")
