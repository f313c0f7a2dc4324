"""Measures what the planner needs to know: layers, memory and links. `python -m sailor_runtime.profile --help`."""
