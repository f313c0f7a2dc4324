"""Plans of blocks: the same stages of several pipelines share a node.

A block is an option of a unit: tp, stages per node, and the pipelines that it serves. `guesses` rates all sets of
options at once as arrays, as if layers could be divided. `engine` then cuts and places the best sets, and gives them
figures by the closed form.
"""

from sailor_cloud.planner.seeds.blocks.engine import Blocks, Judged, Key, Rated

__all__ = ["Blocks", "Judged", "Key", "Rated"]
