"""Buys exactly the nodes of a plan with Terraform, and proves that they are gone afterwards."""
