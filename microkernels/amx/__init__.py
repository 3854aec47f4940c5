"""Tile registers (AMX): permission, shapes, the tiles' own TensorIntrins, predicted time.

In: what a product needs of its tiles. Out: statements that configure and use them, and estimates
of how long these take. The microkernels themselves are in `kernels`.
"""
