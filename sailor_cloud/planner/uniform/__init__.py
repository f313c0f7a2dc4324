"""Plans with equal pipelines, for training programs that support only these, and for ZeRO-2 and 3.

Since pipelines are equal, the time of an iteration depends on one chain of stages: its busiest stage, its latency and
its longest all-reduce. Dynamic programming finds the best chains for each microbatch size and number of pipelines.
They are placed on nodes, and the engine's evaluator judges them. Engines with formulas also have a bound of such plans.
"""

from sailor_cloud.planner.uniform.bound import is_uniform, uniform_bound
from sailor_cloud.planner.uniform.search import uniform_drafts

__all__ = ["is_uniform", "uniform_bound", "uniform_drafts"]
