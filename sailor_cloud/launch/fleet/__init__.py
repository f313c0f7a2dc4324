"""The nodes of a run: made, reached by SSH, given the runtime and its packages, and spoken to through their agents."""
