"""Checkpoints: their content, time and place."""
