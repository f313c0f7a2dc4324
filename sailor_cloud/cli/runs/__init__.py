"""Commands on runs: start, follow, end, and what they cost."""
