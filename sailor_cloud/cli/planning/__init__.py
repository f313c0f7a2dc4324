"""Commands that buy nothing: plan, explain, compare, simulate."""
