"""Plans beside one another: the decision, alternatives, strategies, differences."""
