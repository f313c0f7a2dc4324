"""Commands for a first start: a job file, its schema, this machine, the shell."""
