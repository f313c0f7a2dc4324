"""Stages of several pipelines together on nodes: how the model is cut for them, and what an iteration takes."""
