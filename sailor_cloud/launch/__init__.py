"""Runs a plan: reaches the nodes, ships the runtime, starts it, watches it, and tears everything down."""
