"""Removes what runs have made, and proves that it is gone."""
