"""One training rank: trains its part of a plan, equal to one process."""
