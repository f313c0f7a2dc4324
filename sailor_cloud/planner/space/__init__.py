"""The search space of a plan: offers, quotas, goals, limits, drafts.

A space holds pools of nodes for sale, with tables of stages and links that all searches share. Parts of a space (some
zones, accelerators or a ZeRO stage) share these tables too. Effort is counted in evaluations, not in seconds, so the
same input gives the same plan.
"""
