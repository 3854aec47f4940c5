"""Measures how long models take until they answer."""
