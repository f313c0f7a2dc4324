"""Engines by name: those of training programs, and the one of imported profiles."""

from __future__ import annotations

from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.simulator.engine import Engine
from sailor_cloud.simulator.engines.registry import ENGINES

# The engine whose formulas come with imported profiles.
SAILOR_ARTIFACT = "sailor-artifact"
NAMES = (*ENGINES, SAILOR_ARTIFACT)


def engine_named(name: str, *, profiles: Path | None = None) -> Engine:
    """Return an engine by name; `profiles` is sailor-artifact's folder of imported profiles, by default the user's own.

    Raises RequestError for an unknown name, and as read_tables does.
    """
    if name == SAILOR_ARTIFACT:
        from sailor_cloud.simulator.engines.sailor_artifact import sailor_artifact

        return sailor_artifact(profiles or resources.folders().profiles)
    engine = ENGINES.get(name)
    if engine is None:
        raise RequestError([Problem(path="engine", message=f"{name!r} is not known; known: {', '.join(NAMES)}")])
    return engine
