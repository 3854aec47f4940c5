"""Loops around microkernels: one template per kind of region.

Importing the package registers every template; adding one is a new file and its import here.
"""

from . import batch_matmul, matmul, normalize

__all__ = ["batch_matmul", "matmul", "normalize"]
