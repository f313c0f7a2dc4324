"""What stands beside the plan: alternatives, the decision, the frontier, anchors, and why there is no plan."""
