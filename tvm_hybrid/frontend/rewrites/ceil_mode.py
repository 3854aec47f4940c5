"""Pools with ceil_mode, as pools with more padding at the end.

MaxPool(x[5], kernel_shape=[2], strides=[2], ceil_mode=1)      ->    MaxPool(x, pads=[0, 1], ...)
MaxPool(x[n], kernel_shape=[3], strides=[2], ceil_mode=1)      ->    MaxPool(x, pads=[0, 1], ...)
AveragePool(x[n], count_include_pad=1, ceil_mode=1, ...)       ->    y = AveragePool(x, pads, ...)
                                                                     Div(y, AveragePool(ones, ...))

The last window may reach beyond the padding, but has to begin before the padding at the end. With
extent n, span k, stride s and pads p and q there are

    min(ceil((n + p + q - k) / s), floor((n + p - 1) / s)) + 1

windows, as in ONNX Runtime; ONNX infers more. Where it depends on n which of both is smaller, the
pool makes the larger number, and a Slice drops the last window. An average that counts the padding
does not count what lies beyond it: it is divided by the same average of ones.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..graph import Graph
from ..node_builder import Extent, NodeBuilder, attributes_of
from ..node_extents import extents_of
from ..windows import window_count


def ceil_mode(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """The pool without the attribute; None if TVM's form of it is right."""
    attributes = attributes_of(node)
    dims, kernel = graph.dims(node.input[0]), attributes.get("kernel_shape") or ()
    if dims is None or len(kernel) != len(dims) - 2:
        return None
    counts_padding = node.op_type == "AveragePool" and attributes.get("count_include_pad", 0)
    if counts_padding and None not in dims[2:]:
        return None
    rank, ones = len(kernel), [1] * len(kernel)
    strides, dilations = (attributes.get(name) or ones for name in ("strides", "dilations"))
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    before, after = pads[:rank], pads[rank:]
    longer, cut = list(after), []
    for axis, extent in enumerate(dims[2:]):
        span, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        around = before[axis], after[axis]
        if extent is not None:
            count = window_count(extent, around, kernel[axis], stride, dilations[axis], True)
            if count < 1:
                return None
            longer[axis] = max(0, (count - 1) * stride + span - extent - before[axis])
        elif after[axis] >= span - 1:
            longer[axis] = span - 1
        else:
            longer[axis] = after[axis] + stride - 1
            if after[axis] > span - stride:
                cut.append(axis)
    build = NodeBuilder(graph, node)
    changed = ("auto_pad", "ceil_mode", "pads")
    rest = {name: value for name, value in attributes.items() if name not in changed}
    x, output = node.input[0], node.output[0]
    last = "" if counts_padding or cut else output
    pooled = build.add(node.op_type, x, output=last, pads=[*before, *longer], **rest)
    if counts_padding:
        counted = [min(each) for each in zip(longer, after, strict=True)]
        beyond = [most - own for most, own in zip(longer, counted, strict=True)]
        image = _ones(build, x, [p + q for p, q in zip(before, counted, strict=True)])
        shares = build.add(node.op_type, image, pads=[*([0] * rank), *beyond], **rest)
        pooled = build.add("Div", pooled, shares, output="" if cut else output)
    for axis in cut:
        span, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        size = extents_of(build, x)[axis + 2]
        over = _plus(build, size, before[axis] + after[axis] - span + stride - 1)
        inside = _plus(build, size, before[axis] - 1)
        step = build.constant([stride], np.int64)
        last = build.add("Min", build.add("Div", over, step), build.add("Div", inside, step))
        start, along = build.constant([0], np.int64), build.constant([axis + 2], np.int64)
        name = output if axis == cut[-1] else ""
        pooled = build.add("Slice", pooled, start, _plus(build, last, 1), along, output=name)
    return build.nodes


def _ones(build: NodeBuilder, x: str, pads: list[int]) -> str:
    """An image of ones, as large as a padded one."""
    extents = extents_of(build, x)[2:]
    sizes = [_plus(build, *each) for each in zip(extents, pads, strict=True)]
    shape = build.add("Concat", build.constant([1, 1], np.int64), *sizes, axis=0)
    return build.add("Expand", build.number(x, 1.0), shape)


def _plus(build: NodeBuilder, extent: Extent, more: int) -> str:
    """A sum of sizes as a value int64[1]."""
    if isinstance(extent, int):
        return build.constant([extent + more], np.int64)
    return build.add("Add", extent, build.constant([more], np.int64))
