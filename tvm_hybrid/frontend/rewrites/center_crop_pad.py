"""CenterCropPad of open sizes as one Pad, whose amounts below 0 crop.

CenterCropPad(x: [n, 3], [5], axes=[0])
    ->  Pad(x, [max(5 - n, 0) // 2 - max(n - 5, 0) // 2, what is left], axes=[0]): [5, 3]

Known sizes go by ONNX's definition, a Pad and a Slice, of which TVM would not find the 5.
"""

from __future__ import annotations

import numpy as np
import onnx

from ..graph import Graph
from ..node_builder import NodeBuilder, attributes_of
from .expand_function import expand_missing
from .registry import rewrites


@rewrites("CenterCropPad")
def center_crop_pad(node: onnx.NodeProto, graph: Graph) -> list[onnx.NodeProto] | None:
    """To a shape that is known or follows from other sizes."""
    x, wanted = node.input
    dims = graph.dims(x)
    if dims is None or (graph.shape(x) is not None and wanted in graph.constants):
        return expand_missing(node, graph)
    build = NodeBuilder(graph, node)
    places = attributes_of(node).get("axes", range(len(dims)))
    axes = build.constant([axis % len(dims) for axis in places], np.int64)
    wanted = build.add("Cast", wanted, to=onnx.TensorProto.INT64)
    sizes = build.add("Gather", build.add("Shape", x), axes, axis=0)
    most, two = build.add("Max", sizes, wanted), build.constant([2], np.int64)
    missing, too_many = (build.add("Sub", most, each) for each in (sizes, wanted))
    halves = [build.add("Div", each, two) for each in (missing, too_many)]
    before = build.add("Sub", *halves)
    after = build.add("Sub", build.add("Sub", wanted, sizes), before)
    amounts = build.add("Concat", before, after, axis=0)
    build.add("Pad", x, amounts, "", axes, output=node.output[0])
    return build.nodes
