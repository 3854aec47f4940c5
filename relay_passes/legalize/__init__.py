"""What no template takes, left to TVM: how its operators are written as kernels, fused, scheduled.

In: a module in which regions are kernels and the rest is operators. Out: calls of kernels alone.
"""
