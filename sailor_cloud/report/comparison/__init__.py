"""Plans beside one another: published planners' and ours, and what changes between two."""
