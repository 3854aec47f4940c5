"""Decides which operators become one kernel.

In: a block of operators. Out: regions. A region is a function with an anchor, such as a matmul, and
the operators fused with it; several regions may be merged to one.
"""
