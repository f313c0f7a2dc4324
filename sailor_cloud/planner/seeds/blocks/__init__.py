"""Plans of blocks: the same stages of several pipelines share a node."""

from sailor_cloud.planner.seeds.blocks.engine import Blocks, Judged, Key, Rated

__all__ = ["Blocks", "Judged", "Key", "Rated"]
