"""The parts of a report besides the plan: alternatives, decision, frontier, anchors, and reasons for no plan.

Most parts are short searches of their own, which start from plans that are already known. A plan found here that beats
the answer replaces it. Reasons for no plan come from searches without one constraint, or with a larger quota.
"""
