"""Patterns in which stages of several pipelines share nodes, with the cut of the model for each.

A unit is a kind of nodes for the replicas of a block, in one zone or several. An option says how a unit serves
pipelines: tp, stages per node, number of nodes. `layer_cuts` divides the layers so that the busiest stage computes as
little as possible.
"""
