"""The nodes of a run: creates them, connects by SSH, installs the runtime and its packages, and talks to agents."""
