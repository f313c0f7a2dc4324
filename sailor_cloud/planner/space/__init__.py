"""The search space of a plan: offers, quotas, goals, limits, drafts."""
