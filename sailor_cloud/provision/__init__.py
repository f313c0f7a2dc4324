"""Buys exactly the nodes of a plan with Terraform, and verifies their deletion afterwards."""
