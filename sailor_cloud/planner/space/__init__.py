"""What may be bought, as the search sees it: offers, quotas, goals, limits, drafts."""
