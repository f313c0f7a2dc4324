"""Prices over time and elsewhere, which of them are doubted, prices of services, and interruptions of spot."""
