"""A command of the user's on one node: its environment, its processes, its output and its checkpoints."""
