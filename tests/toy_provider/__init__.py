"""A provider from outside: what a package brings that adds one to sailor-cloud; tests register it."""
