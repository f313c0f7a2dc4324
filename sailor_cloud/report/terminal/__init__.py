"""Sections of the terminal report: each takes a document and returns something that rich can print."""
