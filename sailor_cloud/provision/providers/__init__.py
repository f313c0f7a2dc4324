"""One folder per provider: how what it sells is bought, found and removed."""
