"""Where the local node's program was: the HCL that older runs keep in their folders still names it."""
