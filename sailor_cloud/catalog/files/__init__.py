"""A pricing folder: its CSV files, its offers, and the prices that a user has refreshed."""
