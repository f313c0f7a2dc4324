"""Local search on the exact evaluator: makes good plans better.

The evaluator computes the iteration time of the replay from parts that are cached per pipeline. Moves change sizes,
cuts, degrees, places and numbers of pipelines, and descents restart a few times. `choice` then simulates the best plans
in order, and the first that no other can beat is the answer.
"""

from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.improvement.local_search import Improver, evaluated, improved
from sailor_cloud.planner.improvement.moves import Neighbour, Neighbourhood

__all__ = ["Evaluator", "Improver", "Neighbour", "Neighbourhood", "evaluated", "improved"]
