"""Foreign files, unchanged; README.md says which."""
