"""Measures this CPU, and makes the pages of speed from what was measured: see `__main__`."""
