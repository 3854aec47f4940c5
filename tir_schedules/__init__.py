"""Loops around microkernels: one template per kind of region.

Importing the package registers every template; adding one is a new file and its import here.
"""

from . import (
    attention,
    batch_matmul,
    conv2d,
    conv2d_winograd,
    depthwise_conv2d,
    depthwise_pointwise,
    elementwise,
    matmul,
    mlp_chain,
    normalize,
    quantization_range,
    weight_only_matmul,
)

__all__ = [
    "attention",
    "batch_matmul",
    "conv2d",
    "conv2d_winograd",
    "depthwise_conv2d",
    "depthwise_pointwise",
    "elementwise",
    "matmul",
    "mlp_chain",
    "normalize",
    "quantization_range",
    "weight_only_matmul",
]
