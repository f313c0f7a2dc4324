"""The agent of one node: starts, watches and ends the ranks of a generation. Standard library only."""
