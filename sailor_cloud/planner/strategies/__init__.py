"""Published planners, implemented from their papers, on our inputs: the plans that their users would get."""

from sailor_cloud.planner.strategies.comparison import Comparison, Contender, compared
from sailor_cloud.planner.strategies.planned import plans_by
from sailor_cloud.planner.strategies.registry import STRATEGIES, strategy_named
from sailor_cloud.planner.strategies.strategy import Strategy

__all__ = ["STRATEGIES", "Comparison", "Contender", "Strategy", "compared", "plans_by", "strategy_named"]
