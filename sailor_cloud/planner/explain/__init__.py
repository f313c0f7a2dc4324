"""The parts of a report besides the plan: alternatives, decision, frontier, anchors, and reasons for no plan."""
