"""From regions to kernels, and everything that no region took.

In: a module with regions. Out: calls of TIR kernels, packed weights, machine code.
"""
