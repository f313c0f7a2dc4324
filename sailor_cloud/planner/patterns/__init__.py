"""Patterns in which stages of several pipelines share nodes, with the cut of the model for each."""
