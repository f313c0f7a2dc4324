"""Shared by several commands: options, progress, and the display during a wait."""
