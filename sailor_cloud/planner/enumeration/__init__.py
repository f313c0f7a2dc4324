"""Small jobs: all plans in the order of their lower bounds.

A job is small if all its layouts, cuts and batch shares can be bounded as arrays within seconds. Plans are replayed
from the lowest bound on, until no other can be better. Then the best plan is proven, which the bounds of large jobs are
too loose for.
"""
