"""Terraform as a program: how it is found and run, and the locks of its states."""
