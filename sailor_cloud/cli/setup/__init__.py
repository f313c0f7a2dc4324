"""Commands to begin with: a job file, its schema, this machine, the shell."""
