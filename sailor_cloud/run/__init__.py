"""What a run leaves on disk: its folder, journal, ledger and receipt."""
