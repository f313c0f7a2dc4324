"""What a rank reports of itself: events, metrics, traces, traffic, and whether its loss diverges."""
