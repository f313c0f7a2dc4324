"""Samples of tokens, their sources, and the check that all ranks read the same."""
