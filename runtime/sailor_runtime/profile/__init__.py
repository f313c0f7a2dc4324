"""Measures the planner's inputs: layers, memory and links. `python -m sailor_runtime.profile --help`."""
