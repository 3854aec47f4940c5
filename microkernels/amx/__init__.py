"""Tile registers (AMX): permission to use them, their shapes, predicted time.

In: what a product needs of its tiles. Out: statements that configure them, and estimates of how
long it takes. The microkernels themselves are in `kernels`.
"""
