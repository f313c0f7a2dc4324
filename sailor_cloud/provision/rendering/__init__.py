"""Turns plans into Terraform roots and their variables, and tells beforehand what they would create."""
