"""Training programs in the simulator: who waits, what is sharded, and how layers are split into stages."""

from sailor_cloud.simulator.engine import (
    SAILOR,
    Engine,
    Formulas,
    IterationParts,
    MemoryRule,
    Selective,
    StagePlace,
    StageSplit,
    Transfers,
    UniformPipelines,
)
from sailor_cloud.simulator.engines.named import engine_named
from sailor_cloud.simulator.engines.registry import ENGINES, SAILOR_ALIKE
from sailor_cloud.simulator.engines.split import stage_bounds

__all__ = [
    "ENGINES",
    "SAILOR",
    "SAILOR_ALIKE",
    "Engine",
    "Formulas",
    "IterationParts",
    "MemoryRule",
    "Selective",
    "StagePlace",
    "StageSplit",
    "Transfers",
    "UniformPipelines",
    "engine_named",
    "stage_bounds",
]
