"""Replaces auto_pad by explicit padding.

Conv(x, W, auto_pad=SAME_UPPER, strides=[2, 2])    ->    Conv(x, W, pads=[0, 0, 1, 1], ...)

TVM's importer pads in a kernel of its own. The amounts are those of the ONNX operators: the output
has ceil(input / stride) elements, and SAME_UPPER puts an odd one at the end.

MaxPool(x[n], auto_pad=SAME_UPPER, kernel_shape=[2], strides=[2])    ->    MaxPool(x, ceil_mode=1)

Where an extent is open, windows of two elements lack one at most, at the end, which is ceil_mode.
Pools without auto_pad are as ceil_mode.py and wide_windows.py have them.
"""

from __future__ import annotations

from typing import Any

import onnx

from ..graph import Graph
from ..node_builder import attributes_of, with_attributes
from .ceil_mode import ceil_mode
from .registry import rewrites
from .wide_windows import wide_windows

_POOLS = ("AveragePool", "LpPool", "MaxPool")


@rewrites("Conv", "AveragePool", "LpPool")
def auto_pad(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """Replaces the attribute, if there is one and the pads follow from what is known of shapes."""
    attributes = attributes_of(node)
    mode = attributes.get("auto_pad", "NOTSET")
    if mode in ("NOTSET", "VALID") and node.op_type in _POOLS:
        by_ceil = attributes.get("ceil_mode", 0)
        return ceil_mode(node, graph) if by_ceil else wide_windows(node, graph)
    shape = graph.dims(node.input[0])
    weight = graph.shape(node.input[1]) if node.op_type in ("Conv", "ConvInteger") else None
    kernel = attributes.get("kernel_shape") or (weight or ())[2:]
    if mode not in ("SAME_UPPER", "SAME_LOWER") or shape is None or len(kernel) != len(shape) - 2:
        return None
    strides = attributes.get("strides") or [1] * len(kernel)
    dilations = attributes.get("dilations") or [1] * len(kernel)
    changed: dict[str, Any] = {"auto_pad": None}
    before, after = [], []
    for extent, size, stride, dilation in zip(shape[2:], kernel, strides, dilations, strict=True):
        span = (size - 1) * dilation + 1
        if extent is None and stride > 1:
            if node.op_type != "MaxPool" or span > 2 or mode != "SAME_UPPER":
                return None
            changed["ceil_mode"] = 1
            extent = stride  # a multiple, which needs no padding
        extent = 1 if extent is None else extent  # any, where windows begin at every place
        outputs = -(-extent // stride)
        total = max(0, (outputs - 1) * stride + span - extent)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return [with_attributes(node, pads=[*before, *after], **changed)]
