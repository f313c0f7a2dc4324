"""The published planners, one file each."""
