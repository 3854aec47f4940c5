"""Loops around microkernels: one template per kind of region.

Importing the package registers every template; adding one is a new file and its import here.
"""

from . import (
    batch_matmul,
    elementwise,
    matmul,
    normalize,
    quantization_range,
    weight_only_matmul,
)

__all__ = [
    "batch_matmul",
    "elementwise",
    "matmul",
    "normalize",
    "quantization_range",
    "weight_only_matmul",
]
