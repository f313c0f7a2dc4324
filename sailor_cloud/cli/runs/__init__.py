"""Commands on runs: start, follow, end, and cost."""
