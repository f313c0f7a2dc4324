"""One training rank: trains its part of a plan, with the same result as one process."""
