"""Spaces that were measured completely (`*.jsonl.xz`), to try searches without measuring.

In: every configuration of a region, measured by `record_space`. Out: simulated searches, simulated
borrowing of records, and records that a search learns from.
"""
