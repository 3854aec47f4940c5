"""Spaces that were measured whole (`*.jsonl.xz`), to try searches without measuring.

In: every configuration of a region, measured by `record_space`. Out: simulated searches and
simulated borrowing, and records that a search learns from.
"""
