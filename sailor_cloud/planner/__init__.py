"""Finds the best plan for a job, with a bound on how much better any plan could be."""

from sailor_cloud.planner.search import SearchOptions, search
from sailor_cloud.planner.space.restrictions import Restriction

__all__ = ["Restriction", "SearchOptions", "search"]
