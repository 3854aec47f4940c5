"""Attention of few queries, as with a KV cache.

In: q, and K and V as they are stored. Out: statements that read K and V once, without packing.
"""
