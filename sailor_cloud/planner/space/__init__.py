"""What may be bought, from the planner's view: offers, quotas, goals, limits, drafts."""
