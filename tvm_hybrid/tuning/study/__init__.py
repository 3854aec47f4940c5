"""Compares search strategies on recorded spaces, and plots tuning runs.

In: recordings and tuning records. Out: tables and figures.
"""
