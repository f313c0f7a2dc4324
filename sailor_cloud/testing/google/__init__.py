"""Emulates the answers of Google Cloud: Compute Engine, data services, prices."""
