"""What agents tell of the training, kept in the run folder, and the webhook that is notified of a run."""
