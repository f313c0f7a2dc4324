"""Lower bounds on the goal of every plan, from linear programs."""
