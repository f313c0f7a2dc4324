"""Samples of tokens, where they come from, and that all ranks read the same."""
