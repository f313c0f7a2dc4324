"""Prices over time and elsewhere, doubts about them, prices of services, and interruptions of spot."""
