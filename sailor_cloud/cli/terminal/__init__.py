"""What several commands share: options, progress, and what is shown while one waits."""
