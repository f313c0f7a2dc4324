"""Applies Terraform roots: retries temporary failures and adopts existing resources."""
