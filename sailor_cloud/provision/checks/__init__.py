"""What is asked and refused before anybody pays: account, capacity, zones, permissions."""
