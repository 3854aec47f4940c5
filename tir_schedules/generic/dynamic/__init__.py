"""Loops of generic kernels whose sizes are known at run time only.

In: loop nests with symbolic extents. Out: vectorised loops with their tails.
"""
