"""Plans whose pipelines are all alike, for training programs that run nothing else."""

from sailor_cloud.planner.uniform.search import uniform_drafts

__all__ = ["uniform_drafts"]
