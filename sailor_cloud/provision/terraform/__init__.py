"""Terraform as a program: which one, how it is run, and the locks of its states."""
