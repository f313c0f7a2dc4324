"""Runs, live and past: progress, money, receipts, the dashboard."""
