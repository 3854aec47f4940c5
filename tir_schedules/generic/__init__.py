"""Loops for every function that no template builds.

In: a TIR function as TVM legalised it. Out: the same function with loops that are fused, vectorised
and parallel.
"""
