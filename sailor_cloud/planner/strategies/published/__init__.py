"""The published planners, a file each."""
