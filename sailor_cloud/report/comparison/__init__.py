"""Compares plans: published planners' with ours, and two plans with each other."""
