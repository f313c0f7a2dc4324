"""The former place of the local node's program; the HCL in older runs' folders still names it."""
