"""Turns plans into Terraform roots and their variables, and previews what they would create."""
