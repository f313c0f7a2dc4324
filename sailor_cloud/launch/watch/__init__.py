"""Watches a run: its spending, its prices, its status and its logs."""
