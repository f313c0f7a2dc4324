"""What to do when nodes are lost or can't be had: the job that is left, and the plans for it."""
