"""The time and the money of a draft, and which drafts are on the Pareto frontier."""
