"""The time and the money of a draft, and which drafts are on the Pareto frontier.

`assess` computes times by the closed form, `all_reduces` those of exchanges between pipelines, and `bill` the money at
the simulator's rates. All-reduces depend on the whole layout, so they can't be added up from single pipelines.
"""
