"""What reports show next to the plan: alternatives, the decision, the frontier, anchors, and why there is no plan."""
