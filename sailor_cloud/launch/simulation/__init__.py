"""The controller in simulated time, with simulated nodes, agents and market."""
