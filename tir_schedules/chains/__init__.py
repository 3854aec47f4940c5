"""Regions merged from regions: several templates' work in one program, its parts in cache.

In: regions of which each reads the one before. Out: one TIR function, or the reason for none.
"""
