"""Decides what to do when nodes are lost or unavailable: the remaining job, and the plans for it."""
