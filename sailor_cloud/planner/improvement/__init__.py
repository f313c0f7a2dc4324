"""Local search on the exact evaluator: makes good plans better."""

from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.improvement.local_search import Improver, evaluated, improved
from sailor_cloud.planner.improvement.moves import Neighbour, Neighbourhood

__all__ = ["Evaluator", "Improver", "Neighbour", "Neighbourhood", "evaluated", "improved"]
