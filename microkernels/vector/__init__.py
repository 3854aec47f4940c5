"""What kernels compute with vectors, as TIR expressions.

In: TIR expressions of several lanes. Out: TIR expressions: constants, shuffles, casts,
transcendental functions, and arithmetic with its IEEE meaning.
"""
