"""Third-party files, unchanged; README.md lists them."""
