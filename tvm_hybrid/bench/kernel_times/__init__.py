"""Times of kernels predicted from their TIR: instructions, loops, bytes.

In: any PrimFunc, whoever wrote it. Out: the busiest thread's cycles and its bytes at every level of
the memory. Nothing is compiled or run.
"""
