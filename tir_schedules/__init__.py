"""Loops around microkernels: one template per kind of region.

Importing the package registers every template; adding one is a new file and its name here. A room
is a folder with a paragraph that says what is in it, what comes in and what goes out.
"""

from importlib import import_module

TEMPLATES = (
    "attention.attention",
    "product.batch_matmul",
    "convolution.direct.conv2d",
    "convolution.winograd.conv2d_winograd",
    "convolution.depthwise.depthwise_conv2d",
    "chains.depthwise_pointwise",
    "rows.elementwise",
    "product.matmul",
    "chains.mlp_chain",
    "rows.normalize",
    "rows.quantization_range",
    "recurrent.recurrent",
    "product.weight_only_matmul",
)

for _name in TEMPLATES:
    import_module(f".{_name}", __name__)
