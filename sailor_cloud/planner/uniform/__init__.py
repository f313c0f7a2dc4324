"""Plans with equal pipelines, for training programs that support only these."""

from sailor_cloud.planner.uniform.search import uniform_drafts

__all__ = ["uniform_drafts"]
