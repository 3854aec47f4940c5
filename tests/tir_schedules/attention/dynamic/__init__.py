"""Attention over sizes that are known at run time only."""
