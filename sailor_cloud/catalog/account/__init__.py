"""What an account may use and has reserved: quotas under the names of their providers, reservations."""
