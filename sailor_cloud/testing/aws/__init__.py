"""Emulates the answers of AWS: EC2, accounts, prices."""
