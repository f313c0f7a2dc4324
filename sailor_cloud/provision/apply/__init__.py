"""Applies Terraform roots: what can pass is tried again, what exists already is adopted."""
