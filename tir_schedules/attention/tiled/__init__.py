"""Attention of many queries: row blocks of scores stay in cache.

In: q, k and v of one task. Out: statements: products on register tiles around a softmax.
"""
