"""An account's quotas, under the providers' names for them, and its reservations."""
