"""AMX tile registers: permission to use them, their shapes, and predicted times.

In: the sizes of a product. Out: statements that configure the tile registers, and estimates of the
product's time. The microkernels themselves are in `kernels`.
"""
