"""Lowers regions to kernels, and all operators that are in no region.

In: a module with regions. Out: calls of TIR kernels, packed weights, machine code.
"""
