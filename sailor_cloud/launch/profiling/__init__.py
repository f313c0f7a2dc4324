"""Measures this machine with the runtime's profiler and writes profiles."""
