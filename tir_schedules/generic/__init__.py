"""Loops for every function that no template builds.

In: a TIR function as TVM legalised it. Out: the function with its loops fused, vectorised and
parallel.
"""
