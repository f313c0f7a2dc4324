"""Checks before any purchase: account, capacity, zones, permissions."""
