"""One search in two processes, with the same result."""
