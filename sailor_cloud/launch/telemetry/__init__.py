"""Agents' reports of the training, kept in the run folder, and notices to a webhook."""
