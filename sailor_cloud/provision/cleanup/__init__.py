"""Removes the resources of runs, and verifies that they are deleted."""
