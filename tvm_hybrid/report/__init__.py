"""Measurements and reports for the command line and the demo."""
