"""Measures the time from starting a process to the first answer of a model."""
