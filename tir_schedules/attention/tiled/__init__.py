"""Attention of many queries: bands of scores stay in cache.

In: q, k and v of one task. Out: statements: products on register tiles around a softmax.
"""
