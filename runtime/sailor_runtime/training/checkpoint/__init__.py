"""Checkpoints: what is saved, when and where."""
