"""Plans with equal pipelines, for training programs that support nothing else."""

from sailor_cloud.planner.uniform.search import uniform_drafts

__all__ = ["uniform_drafts"]
