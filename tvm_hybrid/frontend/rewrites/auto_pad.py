"""Replaces auto_pad by explicit padding.

Conv(x, W, auto_pad=SAME_UPPER, strides=[2, 2])    ->    Conv(x, W, pads=[0, 0, 1, 1], ...)

TVM's importer pads in a kernel of its own. The amounts are those of the ONNX operators: the output
has ceil(input / stride) elements, and SAME_UPPER puts an odd one at the end.

MaxPool(x[n], auto_pad=SAME_UPPER, kernel_shape=[2], strides=[2])    ->    MaxPool(x, ceil_mode=1)

Where an extent is dynamic, windows of two elements lack one at most, at the end: that is ceil_mode.

Conv(x[n], W, auto_pad=SAME_UPPER, strides=[3])    ->    Conv(Pad(x, ...), W, strides=[3])

Of other windows the amounts follow from the extent, and a Pad adds them.
Pools without auto_pad are as ceil_mode.py and wide_windows.py have them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from microkernels.base.errors import UnsupportedOperatorError

from ..graph import Graph, describe
from ..node_builder import NodeBuilder, attributes_of, with_attributes
from .ceil_mode import ceil_mode
from .registry import rewrites
from .wide_windows import wide_windows

_POOLS = ("AveragePool", "LpPool", "MaxPool")


class _Axis(NamedTuple):
    """An axis of x whose padding follows from its dynamic extent."""

    place: int
    span: int
    stride: int


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
    before, after, dynamic = [], [], []
    axes = zip(shape[2:], kernel, strides, dilations, strict=True)
    for place, (extent, size, stride, dilation) in enumerate(axes, 2):
        span = (size - 1) * dilation + 1
        if extent is None and stride > 1:
            if node.op_type == "MaxPool" and span <= 2 and mode == "SAME_UPPER":
                changed["ceil_mode"] = 1
            else:
                dynamic.append(_Axis(place, span, stride))
            extent, span = stride, min(span, stride)  # which needs no padding
        extent = 1 if extent is None else extent  # any, where windows begin at every place
        outputs = -(-extent // stride)
        total = max(0, (outputs - 1) * stride + span - extent)
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    single = with_attributes(node, pads=[*before, *after], **changed)
    return _padded(single, dynamic, mode == "SAME_UPPER", graph) if dynamic else [single]


def _padded(
    node: onnx.NodeProto, axes: list[_Axis], upper: bool, graph: Graph
) -> list[onnx.NodeProto]:
    """The node behind a Pad of dynamic extents.

    Raises
    ------
    UnsupportedOperatorError
        Elements that are added would count: of means, and of integers with a zero point.
    """
    if node.op_type not in ("Conv", "MaxPool"):
        raise UnsupportedOperatorError(
            f"{describe(node)}: its padding depends on an extent that is not known; give shapes "
            "that fix it, or write the padding as a Pad before it"
        )
    build, x = NodeBuilder(graph, node), node.input[0]
    shape, rank = build.add("Shape", x), len(graph.dims(x) or ())
    amounts = [build.constant([0], np.int64)] * (2 * rank)
    for place, span, stride in axes:
        extent = build.add("Gather", shape, build.constant([place], np.int64))
        more = build.add("Add", extent, build.constant([stride - 1], np.int64))
        step = build.constant([stride], np.int64)
        whole = build.add("Mul", build.add("Div", more, step), step)
        reach = build.add("Add", whole, build.constant([span - stride], np.int64))
        total = build.add("Sub", reach, extent)
        # Windows without gaps never lack fewer than none. TVM cannot prove that, but divides only
        # what is not negative; the sum of both amounts, and so the size, is free of the maximum.
        positive = build.add("Max", total, build.constant([0], np.int64))
        total = positive if span < stride else total
        small = build.add("Div", positive, build.constant([2], np.int64))
        large = build.add("Sub", total, small)
        amounts[place], amounts[rank + place] = (small, large) if upper else (large, small)
    dtype = helper.tensor_dtype_to_np_dtype(graph.elem_type(x))
    least = -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min
    number = build.constant(np.array(least if node.op_type == "MaxPool" else 0, dtype))
    margin = build.add("Concat", *amounts, axis=0)
    single = with_attributes(node)
    single.input[0] = build.add("Pad", x, margin, number)
    return [*build.nodes, single]
