"""What a rank tells of itself: events, metrics, traces, traffic, and whether its loss diverges."""
