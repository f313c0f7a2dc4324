"""The files of a run: its folder, journal, ledger and receipt."""
