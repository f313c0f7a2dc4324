"""What a run pays for beside its nodes, what it has cost, and how long it may live."""
