"""Replaces output_shape of a transposed convolution by explicit padding.

ConvTranspose(x, W, output_shape=[10, 12], ...)    ->    ConvTranspose(x, W, pads=[1, 1, 0, 0], ...)

TVM's importer ignores the attribute. The amounts are those of the ONNX operator: if the result
is too large, it is cropped on both sides, an odd element at the beginning unless auto_pad is
SAME_UPPER. If it is too small, it is padded at its end, as ONNX Runtime does.
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import attributes_of, with_attributes
from .registry import rewrites


@rewrites("ConvTranspose")
def conv_transpose(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces the attribute, if there is one and the shapes are known."""
    attributes = attributes_of(node)
    wanted = attributes.get("output_shape")
    shape, weight = graph.shape(node.input[0]), graph.shape(node.input[1])
    if not wanted or shape is None or weight is None:
        return None
    rank = len(shape) - 2
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    added = list(attributes.get("output_padding") or [0] * rank)
    before, after = [], []
    for axis, extent in enumerate(wanted[-rank:]):
        span = (weight[2 + axis] - 1) * dilations[axis] + 1
        natural = strides[axis] * (shape[2 + axis] - 1) + added[axis] + span
        total = max(0, natural - extent)
        small, large = total // 2, total - total // 2
        upper = attributes.get("auto_pad") == "SAME_UPPER"
        before.append(small if upper else large)
        after.append(large if upper else small)
        added[axis] += max(0, extent - natural)
    pads = [*before, *after]
    dropped = {"auto_pad": None, "output_shape": None}
    return [with_attributes(node, pads=pads, output_padding=added, **dropped)]
