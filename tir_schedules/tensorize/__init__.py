"""Reads programs that have no template as products of matrices.

In: a block of a TIR function, or the labels of an einsum. Out: which of its axes are batches, rows,
columns and steps, and in which order to store the operands so that our templates multiply them; or
why it is no such product.
"""
