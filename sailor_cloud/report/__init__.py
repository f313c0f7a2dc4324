"""Shows plans, runs and receipts to people."""
