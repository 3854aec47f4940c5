"""Pads pools whose window is wider than the image, as ONNX Runtime computes them.

AveragePool(x[3], kernel_shape=[7], strides=[7])    ->    AveragePool(x, pads=[0, 4], ...)

ONNX's shape inference and ONNX Runtime round (extent - window) / stride toward zero. So where less
than a stride is missing there is one window, over what there is; rounded down there would be none.
"""

from __future__ import annotations

import onnx

from ..graph import Graph
from ..node_builder import attributes_of, with_attributes


def wide_windows(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """A pool with what its windows lack as padding at the end; None if they lack nothing.

    Sizes that are open stay so: their windows are to fit.
    """
    attributes = attributes_of(node)
    shape, kernel = graph.dims(node.input[0]), attributes.get("kernel_shape") or ()
    if shape is None or len(kernel) != len(shape) - 2:
        return None
    rank = len(kernel)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    pads = list(attributes.get("pads") or [0] * (2 * rank))
    lacks = False
    for axis, extent in enumerate(shape[2:]):
        if not extent:
            continue
        span = (kernel[axis] - 1) * dilations[axis] + 1
        missing = span - (extent + pads[axis] + pads[rank + axis])
        if 0 < missing < strides[axis]:
            pads[rank + axis] += missing
            lacks = True
    return [with_attributes(node, auto_pad=None, pads=pads)] if lacks else None
