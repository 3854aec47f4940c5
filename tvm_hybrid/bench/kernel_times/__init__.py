"""Predicts times of kernels from their TIR: instructions, loops, bytes.

In: any PrimFunc. Out: the busiest thread's cycles, and its bytes at every level of the memory.
Nothing is compiled or run.
"""
