"""Lower bounds on the goal of every plan.

`bounds` bounds time by a linear program over the compute of all layers, and `cost_bound` money by the cheapest chain of
stages. `proof` raises the bound on time for `--prove`: column generation refutes times in branches by placement, ZeRO
stage and number of pipelines. A column is a pipeline (`columns`). None of these modules returns a plan, so a loose
bound never makes a plan worse.
"""
