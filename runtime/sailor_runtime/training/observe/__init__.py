"""A rank's reports: events, metrics, traces, traffic, and whether its loss diverges."""
