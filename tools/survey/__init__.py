"""Measures this CPU, and makes the pages about speed from the results: see `__main__`."""
