"""Merged regions: several templates' work in one kernel; tensors between them stay in cache.

In: regions, each of which reads the result of the one before. Out: one TIR function, or the reason
for none.
"""
