"""What kernels compute with vectors, as TIR expressions.

In: expressions of some lanes. Out: expressions: constants, shuffles, casts, transcendental
functions, and arithmetic with its IEEE meaning.
"""
