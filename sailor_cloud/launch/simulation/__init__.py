"""The controller in simulated time: nodes, agents and a market that exist as figures only."""
