"""The cost of a run besides its nodes, its total cost, and the lifetime of its nodes."""
