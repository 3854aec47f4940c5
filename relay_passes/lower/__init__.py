"""Lowers regions to kernels, and kernels to machine code.

In: a module with regions. Out: calls of TIR kernels, packed weights, machine code.
"""
