"""Program: what a kernel does, read off its TIR: instructions, loops, bytes, and their time.

In: any PrimFunc, whoever wrote it. Out: the busiest thread's cycles and its bytes at every level of
the memory. Nothing is compiled or run.
"""
